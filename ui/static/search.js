// The search field of the sidebar: asks the server for titles and texts, one question at a time, the newest answer counts.
"use strict";

(function (P) {
  const PAUSE_MS = 150;
  let field;
  let onchange = () => {};
  // What was found for the words in the field: {items, next}, or null while the list is shown.
  let found = null;
  let asked = 0;
  let timer = 0;

  const words = () => field?.value.trim() ?? "";
  const wordList = () => words().split(/\s+/).filter(Boolean);

  async function ask(after) {
    const number = ++asked;
    const place = after ? `&after=${encodeURIComponent(after)}` : "";
    try {
      const page = await P.api("GET", `conversations?query=${encodeURIComponent(words())}${place}`);
      if (number !== asked) return;
      found = { items: after ? [...found.items, ...page.items] : page.items, next: page.next };
    } catch (error) {
      if (number !== asked) return;
      found ??= { items: [], next: null };
      P.failureToast(`Not searched: ${error.message}`);
    }
    onchange();
  }

  function changed() {
    clearTimeout(timer);
    P.found.clear();
    if (words()) {
      timer = setTimeout(ask, PAUSE_MS);
      return;
    }
    asked += 1;
    found = null;
    onchange();
  }

  // The list tells of rows that have changed or gone.
  function update(item) {
    const old = found?.items.find((other) => other.id === item.id);
    if (old) Object.assign(old, item);
  }
  function remove(id) {
    if (found) found.items = found.items.filter((item) => item.id !== id);
  }

  // What the open conversation shows now.
  function onConversation({ conversation, messages }) {
    const item = found?.items.find((other) => other.id === conversation.id);
    if (!item?.message_id) return;
    const isElsewhere = !messages.some((message) => message.id === item.message_id);
    if (item.other_branch === isElsewhere) return;
    item.other_branch = isElsewhere;
    onchange();
  }

  // A text with its hits marked: pieces that alternate, outside and hit.
  function marked(pieces, props) {
    return P.h("span", { dir: "auto", ...props }, ...pieces.map(P.unmarked).map((text, i) => (i % 2 ? P.h("mark", {}, text) : text)));
  }

  function mount(node, listener) {
    field = node;
    onchange = listener;
    field.addEventListener("input", changed);
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !field.value) return;
      field.value = "";
      changed();
    });
  }

  P.socket.on("conversation", onConversation);
  P.search = { mount, marked, update, remove, words, wordList, found: () => found, more: () => ask(found.next) };
})(window.Pageturn);
