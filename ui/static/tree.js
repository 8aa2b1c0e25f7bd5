// The overview of a conversation's branches: fold, jump, delete with an undo; all by keyboard too.
"use strict";

(function (P) {
  const { h } = P;
  // A level is indented by so much, or by less where there are many.
  const STEP_PX = 16;
  const MOST_INDENTED_PX = 128;
  let root, opener, panel, body, count, costs;
  let outline = null;
  let rows = [];
  // Branches that a person has folded or unfolded.
  let toggled = new Map();
  // The row that has the focus, or would get it.
  let current = null;
  let loads = 0;

  const isOpen = () => !panel.hidden;
  const rowOf = (id) => body.querySelector(`[data-id="${id}"]`);

  // --- drawing ------------------------------------------------------------------------------------

  function drawRow({ id, level, folds, open, goesOn, size }) {
    const node = outline.nodes.get(id);
    const who = node.role === "user" ? "You" : "Assistant";
    const mark = h("span", { class: "pt-fold", "aria-hidden": "true", onclick: (event) => (event.stopPropagation(), toggle(id)) }, folds ? P.icon("right") : null);
    const text = h("span", { class: "pt-beginning", dir: "auto" }, P.unmarked(node.beginning) || (node.status === "generating" ? "…" : "(empty)"));
    const label = size > 1 ? `Delete this and ${P.plural(size - 1, "message")} below` : "Delete this message";
    return h(
      "div",
      {
        class: `pt-node pt-node-${node.role}${outline.path.has(id) ? " pt-on-path" : ""}${goesOn ? " pt-goes-on" : ""}`,
        role: "treeitem",
        "data-id": id,
        "aria-level": level,
        "aria-expanded": folds ? String(open) : null,
        "aria-selected": String(id === outline.head),
        tabindex: id === current ? 0 : -1,
        style: `--pt-level: ${level - 1}`,
        onclick: () => jump(id),
      },
      mark,
      h("span", { class: "pt-who" }, who),
      text,
      folds && !open ? h("span", { class: "pt-size" }, `+${P.number(size - 1)}`) : null,
      outline.startsBranch(id) ? P.residency.chip(id) : null,
      P.iconButton("trash", label, (event) => (event.stopPropagation(), remove(id)), { tabindex: -1, class: "pt-icon-button pt-remove" }),
    );
  }

  function draw() {
    rows = outline.rows(toggled);
    if (!rows.some((row) => row.id === current)) current = (rows.find((row) => row.id === outline.head) ?? rows[0])?.id ?? null;
    const hadFocus = body.contains(document.activeElement);
    const { scrollTop } = body;
    body.style.setProperty("--pt-step", `${Math.min(STEP_PX, MOST_INDENTED_PX / Math.max(1, ...rows.map((row) => row.level - 1)))}px`);
    body.replaceChildren(...rows.map(drawRow));
    body.scrollTop = scrollTop;
    if (hadFocus) rowOf(current)?.focus({ preventScroll: true });
    P.setText(count, P.plural(outline.nodes.size, "message"));
    costs.hidden = ![...outline.nodes.keys()].some(outline.startsBranch);
  }

  async function load() {
    const id = P.chat.openId();
    const number = ++loads;
    if (!id || !isOpen()) return;
    try {
      const found = await P.api("GET", `conversations/${id}/outline`);
      if (number !== loads || !isOpen()) return;
      outline = new P.Outline(found);
      draw();
    } catch (error) {
      P.failureToast(`No overview: ${error.message}`);
    }
  }

  // --- what can be done ---------------------------------------------------------------------------

  function toggle(id) {
    const row = rows.find((other) => other.id === id);
    if (!row?.folds) return;
    toggled.set(id, !row.open);
    current = id;
    draw();
  }

  function jump(id) {
    current = id;
    P.jump.to(P.chat.openId(), id);
    if (matchMedia("(max-width: 768px)").matches) close();
    else draw();
  }

  async function remove(id) {
    const head = outline.head;
    const at = rows.findIndex((row) => row.id === id);
    try {
      const done = await P.api("DELETE", `messages/${id}`);
      current = rows[Math.max(at - 1, 0)].id;
      const undo = () => restore(id, head === done.head_id ? null : head);
      P.toast(`${P.plural(done.num_messages, "message")} deleted`, "Undo", undo);
    } catch (error) {
      P.failureToast(`Not deleted: ${error.message}`);
    }
  }

  async function restore(id, head) {
    try {
      await P.api("POST", `messages/${id}/restore`);
      if (head) await P.chat.select(head);
    } catch (error) {
      P.failureToast(`Not restored: ${error.message}`);
    }
  }

  // --- keys ---------------------------------------------------------------------------------------

  const move = (to) => rows[to] && rowOf(rows[to].id).focus();

  // The row with the focus, or with a button that has it, is the one that Tab comes back to.
  function onFocus(event) {
    const node = event.target.closest(".pt-node");
    if (!node) return;
    rowOf(current)?.setAttribute("tabindex", -1);
    current = node.dataset.id;
    node.tabIndex = 0;
  }

  // Left folds, or goes to what the row lies below; Right unfolds, or goes to what lies below it.
  function fold(at) {
    if (rows[at].open) toggle(current);
    else move(rows.findLastIndex((row, i) => i < at && row.level < rows[at].level));
  }
  function unfold(at) {
    if (rows[at].folds && !rows[at].open) toggle(current);
    else if (rows[at + 1]?.level > rows[at].level) move(at + 1);
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("button")) return;
    const at = rows.findIndex((row) => row.id === current);
    const act = {
      ArrowDown: () => move(at + 1),
      ArrowUp: () => move(at - 1),
      Home: () => move(0),
      End: () => move(rows.length - 1),
      ArrowLeft: () => fold(at),
      ArrowRight: () => unfold(at),
      Enter: () => jump(current),
      " ": () => jump(current),
      Delete: () => remove(current),
    }[event.key];
    if (!act || at < 0) return;
    event.preventDefault();
    act();
  }

  // --- opening, closing ---------------------------------------------------------------------------

  async function open() {
    panel.hidden = false;
    P.drawer.giveWay();
    opener.setAttribute("aria-expanded", "true");
    current = null;
    await load();
    const node = rowOf(current);
    node?.scrollIntoView({ block: "center" });
    node?.focus({ preventScroll: true });
  }

  function close() {
    if (!isOpen()) return;
    const hadFocus = panel.contains(document.activeElement);
    panel.hidden = true;
    P.drawer.comeBack();
    opener.setAttribute("aria-expanded", "false");
    if (hadFocus) opener.focus();
  }

  // Another conversation is another tree.
  function opened() {
    opener.hidden = !P.chat.openId();
    toggled = new Map();
    current = null;
    if (opener.hidden) close();
    else load();
  }

  function mount(element) {
    root = element;
    opener = P.button("branch", "Branches", () => (isOpen() ? close() : open()), { class: "pt-button pt-quiet pt-tree-opener", "aria-expanded": "false" });
    count = h("span", { class: "pt-soft" });
    body = h("div", { class: "pt-nodes", role: "tree", "aria-label": "Messages of this conversation" });
    body.addEventListener("keydown", onKey);
    body.addEventListener("focusin", onFocus);
    const head = h("header", {}, h("h2", {}, "Branches"), count, P.iconButton("close", "Close", close));
    costs = h("p", { class: "pt-costs" }, "To go on: ", h("span", { class: "pt-instant" }, "at once"), h("span", {}, "computed again first"));
    panel = h("aside", { class: "pt-tree", "aria-label": "Branches", hidden: true }, head, costs, body);
    panel.addEventListener("keydown", (event) => event.key === "Escape" && (event.preventDefault(), close()));
    root.append(opener, panel);
    opened();
  }

  P.socket.on("conversation", (frame) => panel && frame.conversation.id === P.chat.openId() && load());
  document.addEventListener("pageturn:open", () => panel && opened());
  P.tree = { mount };
})(window.Pageturn);
