// The sidebar: brand, new chat, search, the list of conversations, the model and the state of the connection.
"use strict";

(function (P) {
  const DAY = 86400000;
  const items = new Map();
  let list, search, footer;
  let renaming = null;

  function groupOf(item) {
    if (item.pinned) return "Pinned";
    const midnight = new Date().setHours(0, 0, 0, 0);
    const time = new Date(item.updated_at).getTime();
    if (time >= midnight) return "Today";
    if (time >= midnight - DAY) return "Yesterday";
    return time >= midnight - 7 * DAY ? "Previous 7 days" : "Older";
  }

  function shownItems() {
    const query = search.value.trim().toLowerCase();
    const found = [...items.values()].filter((item) => item.title.toLowerCase().includes(query));
    return found.sort((a, b) => b.pinned - a.pinned || b.updated_at.localeCompare(a.updated_at));
  }

  async function patch(item, changes) {
    try {
      await P.api("PATCH", `conversations/${item.id}`, changes);
    } catch (error) {
      P.failureToast(`Not changed: ${error.message}`);
    }
  }

  async function remove(item) {
    try {
      await P.api("DELETE", `conversations/${item.id}`);
    } catch (error) {
      P.failureToast(`Not deleted: ${error.message}`);
      return;
    }
    const wasOpen = P.chat.openId() === item.id;
    if (wasOpen) P.chat.open(null);
    P.toast(`“${item.title}” deleted`, "Undo", async () => {
      await P.api("POST", `conversations/${item.id}/restore`).catch((error) => P.failureToast(`Not restored: ${error.message}`));
      if (wasOpen) P.chat.open(item.id);
    });
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
    const field = P.h("input", { class: "pt-field", "aria-label": "Title", maxlength: 200 });
    field.value = item.title;
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") endRename(item, field.value.trim());
      if (event.key === "Escape") endRename(item, null);
    });
    field.addEventListener("blur", () => renaming === item.id && endRename(item, field.value.trim()));
    return field;
  }

  function row(item) {
    const open = P.chat.openId() === item.id;
    const node = P.h("li", { class: `pt-conversation${open ? " pt-open" : ""}`, "data-id": item.id });
    if (renaming === item.id) {
      node.append(renameField(item));
      return node;
    }
    node.append(
      P.h(
        "button",
        { type: "button", class: "pt-conversation-open", title: item.title, "aria-current": open ? "page" : null, onclick: () => choose(item.id) },
        item.running ? P.h("span", { class: "pt-running", role: "img", "aria-label": "answering" }) : null,
        P.h("span", { class: "pt-title" }, item.title),
      ),
      P.iconButton("pin", item.pinned ? "Unpin" : "Pin", () => patch(item, { pinned: !item.pinned }), { "aria-pressed": String(item.pinned) }),
      P.iconButton("edit", "Rename", () => {
        renaming = item.id;
        draw();
        const field = list.querySelector("input");
        field.focus();
        field.select();
      }),
      P.iconButton("trash", "Delete", () => remove(item)),
    );
    return node;
  }

  // A rename in progress keeps its field: the list waits for its end.
  function draw() {
    if (!list || (renaming && list.querySelector("input"))) return;
    const nodes = [];
    let group = null;
    for (const item of shownItems()) {
      if (groupOf(item) !== group) {
        group = groupOf(item);
        nodes.push(P.h("li", { class: "pt-group" }, group));
      }
      nodes.push(row(item));
    }
    if (!nodes.length) nodes.push(P.h("li", { class: "pt-group" }, search.value ? "Nothing found" : "No conversations yet"));
    const focused = document.activeElement?.closest?.(".pt-conversation")?.dataset.id;
    list.replaceChildren(...nodes);
    if (focused) list.querySelector(`[data-id="${focused}"] .pt-conversation-open`)?.focus();
  }

  // On a phone the sidebar covers the chat, so choosing closes it.
  function choose(id) {
    P.chat.open(id);
    P.showChat();
    if (matchMedia("(max-width: 768px)").matches) document.querySelector("#pt-sidebar .toggle-button")?.click();
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
    [list, search, footer] = [".pt-list", ".pt-search", ".pt-foot-state"].map((name) => element.querySelector(name));
    search.addEventListener("input", draw);
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      search.value = "";
      draw();
    });
    element.querySelector(".pt-new").addEventListener("click", () => choose(null));
    draw();
    showState(P.socket.state);
  }

  P.socket.on("conversations", (frame) => {
    items.clear();
    for (const item of frame.items) items.set(item.id, item);
    draw();
  });
  P.socket.on("conversation_changed", (frame) => {
    items.set(frame.item.id, frame.item);
    draw();
  });
  P.socket.on("conversation_removed", (frame) => {
    if (items.delete(frame.conversation_id)) draw();
  });
  P.socket.on("state", showState);
  document.addEventListener("pageturn:open", draw);
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "k" || !search) return;
    event.preventDefault();
    if (search.getBoundingClientRect().right <= 0) document.querySelector("#pt-sidebar .toggle-button")?.click();
    search.focus();
  });

  P.socket.subscribe("conversations");
  P.conversations = { mount };
})(window.Pageturn);
