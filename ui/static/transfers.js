// Conversations to files and back: exports are downloads, imports come by a button or dropped on the page.
"use strict";

(function (P) {
  const { h } = P;
  const LIMIT_BYTES = 64 * 1024 * 1024;
  let field, curtain;
  let depth = 0;

  function download(path) {
    const link = h("a", { href: `api/conversations/${path}`, download: "" });
    document.body.append(link);
    link.click();
    link.remove();
  }

  // "conversation 2, message 5, field “role”" of "conversations[1].messages[4].role".
  function placeOf(param) {
    const parts = [];
    const rest = param.replace(/^(?:conversations)?\[(\d+)\]\.?/, (_, at) => (parts.push(`conversation ${Number(at) + 1}`), ""));
    const field = rest.replace(/^messages\[(\d+)\]\.?/, (_, at) => (parts.push(`message ${Number(at) + 1}`), ""));
    if (field) parts.push(`field “${field}”`);
    return parts.join(", ");
  }

  // Where in the file the fault is, and what it is.
  function faultOf({ message, param }) {
    const isPlaced = param && message.startsWith(`${param} `);
    const words = isPlaced ? `${placeOf(param)}: ${message.slice(param.length + 1)}` : message.replace(/^the body is not JSON: (?:EOF while parsing)?/, (start) => `it is no whole JSON file: ${start.endsWith("g") ? "it ends inside of" : ""}`);
    return `${words.charAt(0).toUpperCase()}${words.slice(1)}.`;
  }

  // Resolves with the ids of what one file has brought.
  async function importFile(file) {
    if (file.size > LIMIT_BYTES) throw new Error(`it has ${P.bytes(file.size)}; at most ${P.bytes(LIMIT_BYTES)} are read`);
    return (await P.api("POST", "conversations/import", file)).conversation_ids;
  }

  // Stays until it was read: which files, and where in them.
  function showFaults(faults, done) {
    const rows = faults.flatMap(({ name, error }) => [h("dt", { dir: "auto" }, name), h("dd", {}, faultOf(error))]);
    const note = h("p", { class: "pt-dialog-note" }, `${done}Nothing of ${faults.length === 1 ? "this file" : "these files"} was taken in. What can be read: JSON files saved by Pageturn, ChatGPT’s conversations.json, and exports of Open WebUI.`);
    P.openDialog("Not imported", h("dl", { class: "pt-faults" }, ...rows), note);
  }

  async function importFiles(files) {
    const ids = [];
    const faults = [];
    for (const file of files) {
      await importFile(file).then(
        (found) => ids.push(...found),
        (error) => faults.push({ name: file.name, error }),
      );
    }
    if (ids.length === 1) P.conversations.choose(ids[0]);
    const done = ids.length ? `${P.plural(ids.length, "conversation")} imported.` : "";
    if (faults.length) showFaults(faults, done && `${done} `);
    else P.toast(done);
  }

  function chooseFiles() {
    field ??= h("input", { type: "file", accept: ".json,application/json", multiple: true, hidden: true, "aria-label": "Files to import" });
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
    curtain ??= h("div", { class: "pt-curtain", "aria-hidden": "true" }, "Drop a file of conversations to import it");
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
