// Conversations to files and back: exports are downloads, imports come by a button or dropped on the page.
"use strict";

(function (P) {
  const { h } = P;
  const LIMIT_BYTES = 64 * 1024 * 1024;
  const SOURCES = "From Pageturn, ChatGPT (its conversations.json) or Open WebUI";
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

  // Resolves with what one file has brought.
  async function importFile(file) {
    if (file.size > LIMIT_BYTES) throw new Error(`it has ${P.bytes(file.size)}; at most ${P.bytes(LIMIT_BYTES)} are read`);
    return P.api("POST", "conversations/import", file);
  }

  // A document with those of its conversations alone that stand at these places.
  function parts(document, places) {
    const isPicked = (_, at) => places.has(at);
    if (Array.isArray(document)) return document.filter(isPicked);
    return Array.isArray(document.conversations) ? { ...document, conversations: document.conversations.filter(isPicked) } : document;
  }

  // What is here already, once more. `twins`: [file, the `already_here` of it].
  async function importAgain(twins) {
    const ids = [];
    try {
      for (const [file, here] of twins) {
        const document = parts(JSON.parse(await file.text()), new Set(here.map(({ position }) => position)));
        ids.push(...(await P.api("POST", "conversations/import?again=true", document)).conversation_ids);
      }
    } catch (error) {
      P.failureToast(`Not imported again: ${error.message}`);
      return;
    }
    if (ids.length === 1) P.conversations.choose(ids[0]);
    P.toast(`${P.plural(ids.length, "conversation")} imported again.`, "Undo", () => takeOut(ids));
  }

  async function takeOut(ids) {
    try {
      for (const id of ids) await P.api("DELETE", `conversations/${id}`);
    } catch (error) {
      P.failureToast(`Not taken back: ${error.message}`);
    }
  }

  // Stays until it was read: which files, and where in them.
  function showFaults(faults, done) {
    const rows = faults.flatMap(({ name, error }) => [h("dt", { dir: "auto" }, name), h("dd", {}, faultOf(error))]);
    const note = h("p", { class: "pt-dialog-note" }, `${done}Nothing of ${faults.length === 1 ? "this file" : "these files"} was taken in. What can be read: JSON files saved by Pageturn, ChatGPT’s conversations.json, and exports of Open WebUI.`);
    P.openDialog("Not imported", h("dl", { class: "pt-faults" }, ...rows), note);
  }

  async function importFiles(files) {
    const brought = [];
    const faults = [];
    for (const file of files) {
      await importFile(file).then(
        (found) => brought.push({ file, ...found }),
        (error) => faults.push({ name: file.name, error }),
      );
    }
    const ids = brought.flatMap((each) => each.conversation_ids);
    const twins = brought.filter((each) => each.already_here.length).map((each) => [each.file, each.already_here]);
    const here = twins.flatMap(([, found]) => found);
    if (ids.length === 1 && !here.length) P.conversations.choose(ids[0]);
    const leftOut = leftOutLine(brought.flatMap((each) => each.settings_left_out));
    const numEmpty = brought.reduce((sum, each) => sum + each.num_empty, 0);
    const done = `${resultLine(ids.length, here.length, numEmpty)}${leftOut}`;
    if (faults.length) showFaults(faults, done && `${done} `);
    else if (here.length) offerAgain(done, here, twins);
    else if (leftOut || numEmpty) P.failureToast(done);
    else P.toast(done);
  }

  // Nobody is led away from what they look at.
  function offerAgain(done, here, twins) {
    const open = here.length === 1 ? [["Open it", () => P.conversations.choose(here[0].conversation_id)]] : [];
    P.choiceToast(done, [...open, ["Import anyway", () => importAgain(twins)]]);
  }

  function resultLine(count, countHere, countEmpty) {
    const were = (number) => (number === 1 ? "was" : "were");
    const told = [[count, "imported"], [countHere, `${were(countHere)} here already`], [countEmpty, `${were(countEmpty)} empty and left out`]].filter(([number]) => number);
    const sentences = told.map(([number, what], at) => `${at ? P.number(number) : P.plural(number, "conversation")} ${what}.`);
    return [...sentences, ...(told.length && !count ? ["Nothing was imported."] : [])].join(" ");
  }

  function leftOutLine(faults) {
    const names = [...new Set(faults.map(({ param }) => param.replace("sampling.", "").split(/[.[]/)[0]))];
    return names.length ? ` Left out, as this model cannot run it: ${names.join(", ")}.` : "";
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
    curtain ??= h("div", { class: "pt-curtain", "aria-hidden": "true" }, h("p", {}, "Drop a file of conversations to import it"), h("p", { class: "pt-soft" }, SOURCES));
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

  P.transfers = { SOURCES, download, chooseFiles };
})(window.Pageturn);
