// Conversations to files and back: exports are downloads, imports come by a button or dropped on the page.
"use strict";

(function (P) {
  const LIMIT_BYTES = 64 * 1024 * 1024;
  let field, curtain;
  let depth = 0;

  function download(path) {
    const link = P.h("a", { href: `api/conversations/${path}`, download: "" });
    document.body.append(link);
    link.click();
    link.remove();
  }

  // Resolves with the ids of what one file has brought; throws with the file's name and the place of its fault.
  async function importFile(file) {
    try {
      if (file.size > LIMIT_BYTES) throw new Error(`it has ${P.bytes(file.size)}; at most ${P.bytes(LIMIT_BYTES)} are read`);
      return (await P.api("POST", "conversations/import", file)).conversation_ids;
    } catch (error) {
      throw new Error(`${file.name} was not imported: ${error.message}`);
    }
  }

  async function importFiles(files) {
    const ids = [];
    const faults = [];
    for (const file of files) {
      await importFile(file).then(
        (found) => ids.push(...found),
        (error) => faults.push(error.message),
      );
    }
    if (ids.length === 1) P.conversations.choose(ids[0]);
    const done = ids.length ? `${P.plural(ids.length, "conversation")} imported. ` : "";
    if (faults.length) P.failureToast(done + faults.join(" "));
    else P.toast(done.trim());
  }

  function chooseFiles() {
    field ??= P.h("input", { type: "file", accept: ".json,application/json", multiple: true, hidden: true, "aria-label": "Files to import" });
    field.onchange = async () => {
      await importFiles([...field.files]);
      field.value = "";
    };
    document.body.append(field);
    field.click();
  }

  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");

  function showCurtain(change) {
    depth = Math.max(0, depth + change);
    curtain ??= P.h("div", { class: "pt-curtain", "aria-hidden": "true" }, "Drop a file of conversations to import it");
    if (depth) document.body.append(curtain);
    else curtain.remove();
  }

  document.addEventListener("dragenter", (event) => hasFiles(event) && showCurtain(1));
  document.addEventListener("dragleave", (event) => hasFiles(event) && showCurtain(-1));
  document.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    showCurtain(-depth);
    importFiles([...event.dataTransfer.files]);
  });

  P.transfers = { download, chooseFiles };
})(window.Pageturn);
