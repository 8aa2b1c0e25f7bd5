// Continue an answer from a place in its text: select some of it, and what ends with the selection is kept.
"use strict";

(function (P) {
  const { h } = P;
  const { placeInSource, shownText, codePoints } = P.places;
  const GAP_PX = 8;
  const QUOTED = 20;
  let bar, quote;
  // The answer and the place in its source that the bar is for, or null.
  let target = null;
  // Set by chat.js: goOn(message, {at_token, n}), refusal() -> reason or null, messageOf(id).
  let actions = null;
  // While a mouse selects, the bar would be in its way; while the bar is pressed, a selection that a touch ends is still meant.
  let held = false;
  // Whether something is selected in an answer that is still being written, or not yet known to have ended.
  let isEarly = false;
  let endWatch = null;

  const elementOf = (node) => (node instanceof Element ? node : node.parentElement);

  // The answer in which the whole selection lies, if that can be continued.
  function selected() {
    isEarly = false;
    const selection = document.getSelection();
    if (!selection || selection.isCollapsed || !selection.toString().trim()) return null;
    const range = selection.getRangeAt(0);
    const view = elementOf(range.startContainer).closest(".pt-message.pt-assistant, .pt-card");
    const message = view && actions.messageOf(view.dataset.id);
    isEarly = Boolean(view) && (!message?.content || message.status === "generating");
    if (!view || isEarly || !view.contains(range.endContainer)) return null;
    const prose = view.querySelector(".pt-prose");
    return prose.contains(range.startContainer) ? { message, prose, range, view } : null;
  }

  function show() {
    const found = selected();
    if (!found) {
      hide();
      return;
    }
    endWatch?.();
    endWatch = P.watchPopup(found.view, hide);
    const { text, count } = shownText(found.prose, found.range);
    const place = placeInSource(found.message.content, text, count);
    target = { message: found.message, place };
    const kept = text.slice(0, count).trimEnd();
    P.setText(quote, `Keeps up to “…${kept.slice(-QUOTED).replace(/\s+/g, " ")}”`);
    found.view.append(bar);
    bar.hidden = false;
    const box = found.range.getBoundingClientRect();
    const room = document.documentElement.clientWidth - bar.offsetWidth - GAP_PX;
    bar.style.left = `${Math.max(GAP_PX, Math.min(box.left, room))}px`;
    bar.style.top = `${Math.min(box.bottom + GAP_PX, innerHeight - bar.offsetHeight - GAP_PX)}px`;
  }

  function hide() {
    endWatch?.();
    [target, endWatch] = [null, null];
    bar.hidden = true;
  }

  async function go(n) {
    const { message, place } = target;
    const reason = actions.refusal();
    if (reason) {
      P.sayObstacle(reason);
      return;
    }
    hide();
    document.getSelection().removeAllRanges();
    try {
      const { ends } = await P.api("GET", `messages/${message.id}/tokens`);
      const limit = codePoints(message.content.slice(0, place));
      const at_token = ends.findLastIndex((end) => end <= limit) + 1;
      actions.goOn(message, n > 1 ? { at_token, n } : { at_token });
    } catch (error) {
      P.failureToast(`Not continued: ${error.message}`);
    }
  }

  function mount(root, given) {
    actions = given;
    quote = h("span", { class: "pt-quote", title: "Whole tokens are kept, up to the end of your selection" });
    const one = P.button("goon", "Continue from here", () => go(1), { "data-action": "from-here" });
    const three = P.button("three", "×3", () => go(3), { "data-action": "from-here-three", "aria-label": "Continue from here, three ways" });
    bar = h("div", { class: "pt-from-here", role: "toolbar", "aria-label": "Continue from here", hidden: true }, quote, one, three);
    bar.addEventListener("mousedown", (event) => event.preventDefault());
    document.addEventListener("pointerdown", (event) => (held = event.pointerType === "mouse" || bar.contains(event.target)));
    document.addEventListener("pointerup", (event) => bar.contains(event.target) || ((held = false), show()));
    for (const type of ["click", "pointercancel"]) document.addEventListener(type, () => (held = false));
    document.addEventListener("selectionchange", () => held || show());
    root.querySelector(".pt-scroll").addEventListener("scroll", hide, { passive: true });
    bar.addEventListener("keydown", (event) => {
      if (event.key === "Escape") (event.stopPropagation(), document.getSelection().removeAllRanges(), hide());
    });
  }

  // After the messages have changed.
  function refresh() {
    if (isEarly && !held) show();
  }

  P.fromHere = { mount, refresh };
})(window.Pageturn);
