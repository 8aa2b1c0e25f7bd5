// Continue an answer from a place in its text: select some of it, and what ends with the selection is kept. Without a mouse
// one sentence after the other is selected, with arrow keys or the buttons for that.
"use strict";

(function (P) {
  const { h } = P;
  const { placeInSource, shownText, codePoints, textNodes, sentences, rangeOf, bringIntoSight } = P.places;
  const STEPS = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  const GAP_PX = 8;
  const QUOTED = 20;
  let bar, quote, one;
  // What the bar is for: {message, place, prose, range, count}, with the place in the answer's source and the count of characters
  // that are shown up to there; or null.
  let target = null;
  // Where the focus goes back to when a sentence was chosen without a mouse and is not used.
  let back = null;
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
    target = { ...found, place, count };
    const kept = text.slice(0, count).trimEnd();
    P.setText(quote, `Keeps up to “…${kept.slice(-QUOTED).replace(/\s+/g, " ")}”`);
    // It may have the focus, which it would lose.
    if (bar.parentNode !== found.view) found.view.append(bar);
    bar.hidden = false;
    putBar();
    markRest();
  }

  function putBar() {
    const box = target.range.getBoundingClientRect();
    const room = document.documentElement.clientWidth - bar.offsetWidth - GAP_PX;
    bar.style.left = `${Math.max(GAP_PX, Math.min(box.left, room))}px`;
    bar.style.top = `${Math.min(box.bottom + GAP_PX, innerHeight - bar.offsetHeight - GAP_PX)}px`;
  }

  // It goes with its place.
  function onScroll({ target: box }) {
    if (!target) return;
    const [seen, place] = [box, target.range].map((part) => part.getBoundingClientRect());
    if (place.bottom > seen.top && place.top < seen.bottom) putBar();
    else hide();
  }

  // What will not be kept looks so.
  function markRest() {
    const rest = document.createRange();
    rest.selectNodeContents(target.prose);
    rest.setStart(target.range.endContainer, target.range.endOffset);
    CSS.highlights?.set("pt-rest", new Highlight(rest));
  }

  function hide() {
    endWatch?.();
    [target, endWatch, back] = [null, null, null];
    bar.hidden = true;
    CSS.highlights?.delete("pt-rest");
  }

  // --- sentence by sentence ------------------------------------------------------------------------

  function select(prose, { begin, end }) {
    const range = rangeOf(textNodes(prose), begin, end);
    document.getSelection().setBaseAndExtent(range.startContainer, range.startOffset, range.endContainer, range.endOffset);
    bringIntoSight(range);
    show();
  }

  function step(by) {
    const places = sentences(textNodes(target.prose));
    const last = places.length - 1;
    const at = places.findIndex(({ end }) => end >= target.count);
    select(target.prose, places[Math.max(0, Math.min((at < 0 ? last : at) + by, last))]);
  }

  // Begins at the end of an answer; `view`: its MessageView.
  function choose(view) {
    const prose = view.prose.node;
    const last = sentences(textNodes(prose)).at(-1);
    if (!last) return;
    select(prose, last);
    back = () => view.foot.querySelector('[data-action="several"]')?.focus();
    one.focus({ preventScroll: true });
  }

  function leave() {
    const goBack = back;
    document.getSelection().removeAllRanges();
    hide();
    goBack?.();
  }

  function onKey(event) {
    const by = STEPS[event.key];
    if (event.key === "Escape") leave();
    else if (by) step(by);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // --- what the bar does ---------------------------------------------------------------------------

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
    quote = h("span", { class: "pt-quote", role: "status", title: "Whole tokens are kept, up to the end of your selection" });
    one = P.button("goon", "Continue from here", () => go(1), { "data-action": "from-here" });
    const three = P.button("three", "×3", () => go(3), { "data-action": "from-here-three", "aria-label": "Continue from here, three ways" });
    const steps = [["left", "Previous sentence", -1], ["right", "Next sentence", 1]].map(([icon, label, by]) => P.iconButton(icon, label, () => step(by)));
    bar = h("div", { class: "pt-from-here", role: "toolbar", "aria-label": "Continue from here", hidden: true }, quote, ...steps, one, three);
    bar.addEventListener("mousedown", (event) => event.preventDefault());
    document.addEventListener("pointerdown", (event) => (held = event.pointerType === "mouse" || bar.contains(event.target)));
    document.addEventListener("pointerup", (event) => bar.contains(event.target) || ((held = false), show()));
    for (const type of ["click", "pointercancel"]) document.addEventListener(type, () => (held = false));
    document.addEventListener("selectionchange", () => held || show());
    root.querySelector(".pt-scroll").addEventListener("scroll", onScroll, { passive: true });
    bar.addEventListener("keydown", onKey);
  }

  // After the messages have changed.
  function refresh() {
    if (isEarly && !held) show();
  }

  P.fromHere = { mount, choose, refresh };
})(window.Pageturn);
