// Where a person writes: always visible, never loses a word. Enter sends, Shift+Enter breaks the line, Esc stops.
"use strict";

(function (P) {
  const { h } = P;
  const DRAFT_LIMIT = 100;
  let area, sendButton, stopButton, severalButton, settingsButton, seedChip, meter;
  // How many answers a message gets: {n, temperatures?}.
  let wish = { n: 1 };
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

  const draftOf = (id) => drafts()[id ?? "new"] ?? "";

  // A text that was sent is no draft any more; what was typed since is, of the conversation that a first message has made.
  function forget(id, text, newId) {
    const typed = draftOf(id);
    if (typed === text) saveDraft(id, "");
    else if (id === null && newId) (saveDraft(null, ""), saveDraft(newId, typed));
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
    actions.submit(text, wish);
  }

  // A draft belongs to its conversation.
  function open(id) {
    draftId = id;
    if (!area) return;
    setText(draftOf(id));
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
    const typed = id === draftId ? area.value : draftOf(id);
    const both = typed.trim() && typed !== text ? `${text}\n${typed}` : text;
    saveDraft(id, both);
    if (id === draftId) setText(both);
  }

  function mount(node, given) {
    actions = given;
    area = h("textarea", { id: "pt-message", class: "pt-input", rows: 1, placeholder: "Write a message", "aria-label": "Message", enterkeyhint: "send" });
    sendButton = P.iconButton("up", "Send", submit, { class: "pt-send" });
    sendButton.append(h("span", { "aria-hidden": "true" }));
    stopButton = P.button("stop", "Stop", () => actions.stop(), { class: "pt-button pt-stop", title: "Stop (Esc)" });
    const menu = { "aria-haspopup": "menu", "aria-expanded": "false" };
    severalButton = P.button("three", "", chooseWish, { class: "pt-button pt-quiet pt-three", title: "How many answers a message gets, side by side", ...menu });
    severalButton.append(P.icon("unfold"));
    settingsButton = P.iconButton("gear", "", () => P.conversationSettings.open());
    const keys = P.iconButton("keys", "Keyboard shortcuts (?)", () => P.shortcuts.open(), { class: "pt-icon-button pt-keys-button" });
    seedChip = P.button("close", "", dropSeed, { class: "pt-button pt-quiet pt-chip", hidden: true });
    meter = new P.ContextMeter();
    const hint = h("div", { class: "pt-keys" }, h("span", {}, "Enter sends · Shift+Enter for a new line"));
    node.append(area, h("div", { class: "pt-composer-row" }, severalButton, settingsButton, keys, seedChip, hint, meter.node, stopButton, sendButton));
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

  // Now, or as soon as the tab that it is in is on show.
  function focus() {
    if (!area) return;
    const shown = new ResizeObserver(() => {
      if (!area.offsetParent) return;
      shown.disconnect();
      area.focus();
    });
    if (area.offsetParent) area.focus();
    else shown.observe(area);
  }

  const isEmptyBox = (node) => node === area && !area.value;

  // --- several answers, and the settings that show here ------------------------------------------

  const chooseWish = () => P.openMenu(severalButton, "Answers to a message", P.several.forMessages(wish, take));

  // Said where one chooses and where one sends.
  function showWish() {
    const { n, temperatures } = wish;
    const spread = temperatures ? `T ${Math.min(...temperatures)}–${Math.max(...temperatures)}` : "";
    const send = n > 1 ? `Send for ${n} answers` : "Send";
    severalButton.querySelector("span").replaceChildren(h("span", {}, P.plural(n, "answer")), h("span", {}, spread));
    severalButton.classList.toggle("pt-chosen", n > 1);
    P.setText(sendButton.querySelector("span"), n > 1 ? `×${n}` : "");
    for (const name of ["title", "aria-label"]) sendButton.setAttribute(name, send);
  }

  function take(given) {
    wish = given;
    showWish();
    P.settings.setCount(given.n).catch((error) => P.failureToast(`Not kept for later: ${error.message}`));
  }

  // The number comes from the settings; temperatures are kept while that stays as it was.
  function showSettings() {
    if (!area) return;
    const n = P.settings.count();
    const { seed } = P.settings.current().sampling;
    if (wish.n !== n) wish = { n };
    showWish();
    showOwn(P.settings.hasOwn());
    seedChip.hidden = seed === undefined;
    P.setText(seedChip.querySelector("span"), `seed ${seed}`);
    seedChip.setAttribute("aria-label", `Seed ${seed} is used; draw freely again`);
  }

  // Whether there is something to be found behind the button.
  function showOwn(has) {
    const name = `Settings of this conversation${has ? ": it has some of its own" : ""}`;
    settingsButton.classList.toggle("pt-has-own", has);
    for (const key of ["title", "aria-label"]) settingsButton.setAttribute(key, name);
  }

  function dropSeed() {
    const { seed, ...sampling } = P.settings.current().sampling;
    P.settings.change({ sampling }).catch((error) => P.failureToast(`Seed ${seed} stays: ${error.message}`));
  }

  P.composer = { wish: () => wish, mount, open, refresh, giveBack, propose, saveDraft, draftOf, forget, isEmptyBox, focus };
})(window.Pageturn);
