// The sidebar: brand, new chat, search, the list of conversations page by page, the model and the state of the connection.
"use strict";

(function (P) {
  const { h } = P;
  const DAY = 86400000;
  const items = new Map();
  // Where the rest of the list begins on the server; null when everything is here.
  let next = null;
  let isLoading = false;
  let list, footer, field;
  let renaming = null;
  // By conversation its row: {node, menu, item, shows}.
  const rows = new Map();

  function groupOf(item) {
    if (item.pinned) return "Pinned";
    const midnight = new Date().setHours(0, 0, 0, 0);
    const time = new Date(item.updated_at).getTime();
    if (time >= midnight) return "Today";
    if (time >= midnight - DAY) return "Yesterday";
    if (time >= midnight - 7 * DAY) return "Previous 7 days";
    return time >= midnight - 30 * DAY ? "Previous 30 days" : "Older";
  }

  const inOrder = (a, b) => b.pinned - a.pinned || b.updated_at.localeCompare(a.updated_at) || b.id.localeCompare(a.id);

  function shown() {
    return P.search.found() ?? { items: [...items.values()].sort(inOrder), next };
  }

  // --- what can be done with a row ----------------------------------------------------------------

  async function patch(item, changes) {
    try {
      await P.api("PATCH", `conversations/${item.id}`, changes);
    } catch (error) {
      P.failureToast(`Not changed: ${error.message}`);
    }
  }

  async function duplicate(item) {
    try {
      choose((await P.api("POST", `conversations/${item.id}/duplicate`)).id);
    } catch (error) {
      P.failureToast(`Not duplicated: ${error.message}`);
    }
  }

  async function remove(item) {
    // Before the server says to all windows that it is gone.
    const wasOpen = P.chat.openId() === item.id;
    try {
      await P.api("DELETE", `conversations/${item.id}`);
    } catch (error) {
      P.failureToast(`Not deleted: ${error.message}`);
      return;
    }
    if (P.chat.openId() === item.id) P.chat.open(null);
    P.toast(`“${item.title}” deleted`, "Undo", async () => {
      await P.api("POST", `conversations/${item.id}/restore`).catch((error) => P.failureToast(`Not restored: ${error.message}`));
      if (wasOpen) P.chat.open(item.id);
    });
  }

  function entries(item) {
    return [
      { icon: "edit", label: "Rename", onclick: () => rename(item) },
      { icon: "pin", label: item.pinned ? "Unpin" : "Pin", onclick: () => patch(item, { pinned: !item.pinned }) },
      { icon: "copy", label: "Duplicate", onclick: () => duplicate(item) },
      { icon: "save", label: "Export as JSON", onclick: () => P.transfers.download(`${item.id}/export?format=json`) },
      { icon: "save", label: "Export as Markdown", onclick: () => P.transfers.download(`${item.id}/export?format=markdown`) },
      { icon: "trash", label: "Delete", onclick: () => remove(item) },
    ];
  }

  const listEntries = () => [
    { icon: "open", label: "Import conversations", note: P.transfers.SOURCES, onclick: P.transfers.chooseFiles },
    { icon: "save", label: "Export all as JSON", onclick: () => P.transfers.download("export?format=json") },
    { icon: "save", label: "Export all as Markdown", onclick: () => P.transfers.download("export?format=markdown") },
  ];

  // --- renaming in place --------------------------------------------------------------------------

  function rename(item) {
    renaming = item.id;
    draw();
    const input = list.querySelector("input");
    input?.focus();
    input?.select();
  }

  function endRename(item, title) {
    renaming = null;
    if (title && title !== item.title) {
      item.title = title;
      patch(item, { title });
    }
    draw();
    list.querySelector(`[data-id="${item.id}"] .pt-conversation-open`)?.focus();
  }

  function renameField(item) {
    const input = h("input", { class: "pt-field", "aria-label": "Title", maxlength: 200, dir: "auto" });
    input.value = item.title;
    input.addEventListener("keydown", (event) => {
      // Else Enter would press the button that has the focus next.
      if (event.key === "Enter" && !event.isComposing) (event.preventDefault(), endRename(item, input.value.trim()));
      if (event.key === "Escape") endRename(item, null);
    });
    input.addEventListener("blur", () => renaming === item.id && endRename(item, input.value.trim()));
    return input;
  }

  // --- drawing ------------------------------------------------------------------------------------

  function stateDot(item) {
    if (item.running) return h("span", { class: "pt-running", role: "img", "aria-label": "answering" });
    return P.unread.has(item.id) ? h("span", { class: "pt-unread", role: "img", "aria-label": "new answer" }) : null;
  }

  function rowText(item) {
    const { snippet, message_id, other_branch } = item;
    if (snippet && message_id === null) return [P.search.marked(snippet, { class: "pt-title" })];
    const title = h("span", { class: "pt-title", dir: "auto" }, item.title);
    if (!snippet) return [title];
    const elsewhere = other_branch ? h("span", { class: "pt-elsewhere" }, P.icon("branch"), "on another branch") : null;
    return [title, P.search.marked(snippet, { class: "pt-snippet" }), ...(elsewhere ? [elsewhere] : [])];
  }

  // A row stays as long as its conversation is listed, with the menu that may be open at it; what changes is what it shows.
  function row(item) {
    if (!rows.has(item.id)) rows.set(item.id, newRow(item.id));
    const known = rows.get(item.id);
    known.item = item;
    const open = P.chat.openId() === item.id;
    const shows = JSON.stringify([item, open, renaming === item.id, P.unread.has(item.id)]);
    if (shows !== known.shows) fill(known, open);
    known.shows = shows;
    return known.node;
  }

  function newRow(id) {
    const known = { node: h("li", { class: "pt-conversation", "data-id": id }) };
    known.menu = P.menuButton("more", "More", () => entries(known.item), { class: "pt-icon-button pt-more" });
    return known;
  }

  function fill({ node, item, menu }, open) {
    node.classList.toggle("pt-open", open);
    if (renaming === item.id) {
      node.replaceChildren(renameField(item));
      return;
    }
    const props = { type: "button", class: "pt-conversation-open", title: item.title, "aria-current": open ? "page" : null };
    const button = h("button", { ...props, onclick: () => choose(item.id, item.message_id) }, stateDot(item), h("span", { class: "pt-row-text" }, ...rowText(item)));
    for (const name of ["title", "aria-label"]) menu.setAttribute(name, `More for “${item.title}”`);
    if (menu.parentNode === node) node.firstChild.replaceWith(button);
    else node.replaceChildren(button, menu);
  }

  function moreRow() {
    const button = P.button("down", "Show more", loadMore, { class: "pt-button pt-quiet pt-load" });
    new IntersectionObserver((seen, observer) => {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      loadMore();
    }, { root: list, rootMargin: "300px" }).observe(button);
    return h("li", {}, button);
  }

  // A rename in progress keeps its field: the list waits for its end.
  function draw() {
    if (!list || (renaming && list.querySelector("input"))) return;
    const nodes = [];
    const page = shown();
    let group = null;
    for (const item of page.items) {
      if (groupOf(item) !== group) {
        group = groupOf(item);
        nodes.push(h("li", { class: "pt-group" }, group));
      }
      nodes.push(row(item));
    }
    if (!nodes.length) nodes.push(h("li", { class: "pt-group" }, P.search.words() ? "Nothing found" : "No conversations yet"));
    if (page.next) nodes.push(moreRow());
    const focused = document.activeElement?.closest?.(".pt-conversation");
    const [id, button] = [focused?.dataset.id, document.activeElement?.className];
    place(nodes);
    if (focused) [...list.querySelectorAll(`[data-id="${id}"] button`)].find((other) => other.className === button)?.focus();
  }

  // What is listed already and stays is not moved.
  function place(nodes) {
    const wanted = new Set(nodes);
    for (const node of [...list.children]) if (!wanted.has(node)) node.remove();
    nodes.forEach((node, index) => node === list.children[index] || list.insertBefore(node, list.children[index] ?? null));
    for (const [id, { node }] of rows) if (!wanted.has(node)) rows.delete(id);
  }

  async function loadMore() {
    if (isLoading) return;
    isLoading = true;
    try {
      if (P.search.found()) await P.search.more();
      else await loadPage();
    } catch (error) {
      P.failureToast(`Not loaded: ${error.message}`);
    }
    isLoading = false;
    draw();
  }

  async function loadPage() {
    const page = await P.api("GET", `conversations?after=${encodeURIComponent(next)}`);
    next = null;
    for (const item of page.items) if (!items.has(item.id)) keep(item);
    next = page.next;
  }

  // A row that lies behind all that is loaded comes with its page.
  const isBeyond = (item) => next !== null && !items.has(item.id) && [...items.values()].every((other) => inOrder(other, item) < 0);

  function keep(item) {
    P.unread.note(item);
    P.search.update(item);
    if (!isBeyond(item)) items.set(item.id, item);
  }

  // On a phone the sidebar covers the chat, so choosing closes it.
  function choose(id, messageId) {
    P.chat.open(id);
    if (messageId) P.jump.to(id, messageId, P.search.wordList());
    P.showChat();
    P.drawer.leave();
    if (id === null) P.composer.focus();
  }

  function showState(state) {
    if (!footer) return;
    const words = { connecting: "Connecting…", loading: "Loading the model…", ready: state.model, lost: "Connection lost" };
    footer.dataset.phase = state.phase;
    P.setText(footer.querySelector(".pt-model"), words[state.phase] || "");
    const length = state.phase === "ready" && state.max_model_len ? `${P.number(state.max_model_len)} tokens of context` : "";
    P.setText(footer.querySelector(".pt-context"), length);
  }

  function mount(element) {
    [list, field, footer] = [".pt-list", ".pt-search", ".pt-foot-state"].map((name) => element.querySelector(name));
    P.search.mount(field, draw);
    footer.addEventListener("click", P.model.open);
    const newChat = element.querySelector(".pt-new");
    newChat.addEventListener("click", () => choose(null));
    newChat.after(P.menuButton("more", "More for all conversations", listEntries));
    draw();
    showState(P.socket.state);
  }

  function markRead() {
    if (document.hidden || !P.unread.read(P.chat.openId())) return;
    draw();
  }

  P.unread.watch((id) => !document.hidden && P.chat.openId() === id);
  P.socket.on("conversations", (frame) => {
    items.clear();
    next = null;
    frame.items.forEach(keep);
    next = frame.next;
    draw();
  });
  P.socket.on("conversation_changed", (frame) => {
    keep(frame.item);
    draw();
  });
  P.socket.on("conversation_removed", (frame) => {
    P.search.remove(frame.conversation_id);
    if (items.delete(frame.conversation_id)) draw();
  });
  P.socket.on("state", showState);
  document.addEventListener("pageturn:open", () => (draw(), markRead()));
  document.addEventListener("visibilitychange", markRead);
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "k" || !field) return;
    event.preventDefault();
    P.drawer.show();
    field.focus();
  });

  P.socket.subscribe("conversations");
  P.conversations = { mount, choose };
})(window.Pageturn);
