// Where a person writes: always visible, never loses a word. Enter sends, Shift+Enter breaks the line, Esc stops.
"use strict";

(function (P) {
  const { h } = P;
  const DRAFT_LIMIT = 100;
  let area, sendButton, stopButton, severalButton, seedChip, meter;
  // How many answers the next message gets while the button for several is pressed: {n, temperatures?}.
  let wish = { n: 3 };
  let draftId = null;
  // Set by chat.js: submit(text, wish), stop(), refusal() and sendRefusal() -> reason or null, canStop(), view().
  let actions = null;

  function drafts() {
    return P.store.get("drafts", {});
  }

  // `id` is a conversation's, or null for a new one.
  function saveDraft(id, text) {
    const key = id ?? "new";
    const all = drafts();
    delete all[key];
    if (text) all[key] = text;
    const kept = Object.entries(all).slice(-DRAFT_LIMIT);
    P.store.set("drafts", Object.fromEntries(kept));
  }

  function fit() {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.35)}px`;
  }

  function refresh() {
    if (!area) return;
    const busy = actions.canStop();
    const reason = actions.sendRefusal();
    meter.update(actions.view());
    sendButton.hidden = busy;
    stopButton.hidden = !busy;
    sendButton.setAttribute("aria-disabled", String(!area.value.trim() || Boolean(reason)));
    if (P.saysObstacle()) P.sayObstacle(reason);
  }

  function setText(text) {
    area.value = text;
    fit();
    refresh();
  }

  function submit() {
    const text = area.value;
    const reason = actions.sendRefusal();
    if (!text.trim()) return;
    if (reason) {
      P.sayObstacle(reason);
      return;
    }
    setText("");
    actions.submit(text, isPressed() ? wish : { n: 1 });
  }

  // A draft belongs to its conversation.
  function open(id) {
    draftId = id;
    if (!area) return;
    setText(drafts()[id ?? "new"] ?? "");
    showSettings();
  }

  // A proposed text is a draft like one that was typed.
  function propose(text) {
    saveDraft(draftId, text);
    setText(text);
    area.focus();
  }

  // A text that could not be sent comes back, before whatever was typed meanwhile.
  function giveBack(text, id) {
    const typed = id === draftId ? area.value : (drafts()[id ?? "new"] ?? "");
    const both = typed.trim() && typed !== text ? `${text}\n${typed}` : text;
    saveDraft(id, both);
    if (id === draftId) setText(both);
  }

  function mount(node, given) {
    actions = given;
    area = h("textarea", { class: "pt-input", rows: 1, placeholder: "Write a message", "aria-label": "Message", enterkeyhint: "send" });
    sendButton = P.iconButton("up", "Send", submit, { class: "pt-send" });
    stopButton = P.button("stop", "Stop", () => actions.stop(), { class: "pt-button pt-stop", title: "Stop (Esc)" });
    severalButton = P.button("three", "", () => press(!isPressed()), { class: "pt-button pt-quiet pt-three pt-joined", title: "Ask for several answers side by side" });
    const more = P.menuButton("unfold", "How many answers", () => P.several.items(P.several.LEAST, wish.n, "Ask for these", wishFor));
    const settings = P.iconButton("gear", "Settings of this conversation", () => P.conversationSettings.open());
    const keys = P.iconButton("keys", "Keyboard shortcuts (?)", () => P.shortcuts.open(), { class: "pt-icon-button pt-keys-button" });
    seedChip = P.button("close", "", dropSeed, { class: "pt-button pt-quiet pt-chip", hidden: true });
    meter = new P.ContextMeter();
    const hint = h("div", { class: "pt-keys" }, h("span", {}, "Enter sends · Shift+Enter for a new line"));
    node.append(area, h("div", { class: "pt-composer-row" }, severalButton, more, settings, keys, seedChip, hint, meter.node, stopButton, sendButton));
    area.addEventListener("input", () => {
      saveDraft(draftId, area.value);
      fit();
      refresh();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    });
    node.addEventListener("click", (event) => event.target === node && area.focus());
    document.addEventListener("pageturn:settings", showSettings);
    showSettings();
    open(draftId);
  }

  const isEmptyBox = (node) => node === area && !area.value;

  // --- several answers, and the settings that show here ------------------------------------------

  // How many answers the next message gets.
  const count = () => (isPressed() ? wish.n : 1);

  const isPressed = () => severalButton.getAttribute("aria-pressed") === "true";

  function showWish(pressed) {
    const { n, temperatures } = wish;
    const spread = temperatures ? ` · T ${Math.min(...temperatures)}–${Math.max(...temperatures)}` : "";
    P.setText(severalButton.querySelector("span"), `${n} answers${spread}`);
    severalButton.setAttribute("aria-pressed", String(pressed));
  }

  function press(pressed) {
    P.store.set("three", pressed);
    showWish(pressed);
  }

  function wishFor(given) {
    wish = given;
    P.store.set("count", given.n);
    press(true);
  }

  // A conversation, or this browser, may want a number of answers always; else what was pressed last holds.
  function showSettings() {
    if (!area) return;
    const always = P.settings.count();
    const { seed, n: own } = P.settings.current().sampling;
    const n = always > 1 ? always : P.store.get("count", 3);
    if (wish.n !== n) wish = { n };
    showWish(always > 1 || (own === undefined && P.store.get("three", false)));
    seedChip.hidden = seed === undefined;
    P.setText(seedChip.querySelector("span"), `seed ${seed}`);
    seedChip.setAttribute("aria-label", `Seed ${seed} is used; draw freely again`);
  }

  function dropSeed() {
    const { seed, ...sampling } = P.settings.current().sampling;
    P.settings.change({ sampling }).catch((error) => P.failureToast(`Seed ${seed} stays: ${error.message}`));
  }

  P.composer = { mount, open, refresh, giveBack, propose, saveDraft, isEmptyBox, count, focus: () => area?.focus() };
})(window.Pageturn);
