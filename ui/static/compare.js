// Compare: marks where each of several finished answers leaves the text that it shares with another, and shows at the
// first token that differs what the model thought it could say there.
"use strict";

(function (P) {
  const { h } = P;
  const GAP_PX = 8;
  // What cannot be seen, the sign that stands for it, and what it is.
  const SIGNS = [[" ", "·", "a space"], ["\n", "⏎", "a line break"], ["\t", "⇥", "a tab"]];
  const LIST_ITEM = /^[\s>]*([-*+]|\d{1,9}[.)])(?=\s)/;
  let popup = null;
  let owner = null;
  let endWatch = null;

  function hidePopup() {
    endWatch?.();
    popup?.remove();
    [popup, owner, endWatch] = [null, null, null];
  }

  // A token's text, with what cannot be seen made visible.
  const visible = (text) => SIGNS.reduce((shown, [unseen, sign]) => shown.replaceAll(unseen, sign), text) || "(end)";

  // What the signs that are shown stand for.
  function legend(choices) {
    const shown = SIGNS.filter(([unseen]) => choices.some(({ text }) => text.includes(unseen)));
    return shown.length ? h("p", { class: "pt-signs" }, shown.map(([, sign, name]) => `${sign} is ${name}`).join(", ")) : null;
  }

  function row({ text, probability, drawn }) {
    const bar = h("i", {});
    bar.style.width = `${100 * probability}%`;
    return h("li", { class: drawn ? "pt-drawn" : null }, h("code", {}, visible(text)), h("span", { class: "pt-bar", "aria-hidden": "true" }, bar), h("b", {}, P.percent(probability, 1)));
  }

  const placePopup = () => P.placePopup(owner, popup, GAP_PX);

  function showChoices(mark, choices) {
    hidePopup();
    owner = mark;
    const title = choices.some((choice) => choice.drawn) ? "What the model thought here" : "The answer ended here; what else it thought of";
    popup = h("div", { class: "pt-choices", id: "pt-choices", role: "tooltip" }, h("p", {}, title), h("ol", {}, ...choices.map(row)), legend(choices));
    document.body.append(popup);
    placePopup();
    endWatch = P.watchPopup(mark, hidePopup);
  }

  // The part of the first text node behind `from` that holds something to see, up to `to`; null behind the last one.
  function markRange(nodes, from, to) {
    let start = 0;
    for (const node of nodes) {
      const begin = Math.max(from - start, 0);
      const seen = node.data.slice(begin).search(/\S/);
      const wanted = Math.max(to - start, begin + seen + 1);
      start += node.length;
      if (begin >= node.length || seen < 0) continue;
      const range = document.createRange();
      range.setStart(node, begin + seen);
      range.setEnd(node, Math.min(wanted, node.length));
      return range;
    }
    return null;
  }

  // Where a stretch of the source, given in code points, begins and ends in what is shown, and the `markup` that it is
  // when nothing of it is shown; `isItem`: that of a list's item.
  function shownStretch({ content }, shown, start, end) {
    const [from, to] = [start, end].map((place) => [...content].slice(0, place).join("").length);
    const places = P.places.placesInSource(content, shown);
    const [after, last] = [places.findIndex((place) => place > from), places.findIndex((place) => place >= to)];
    const next = after < 0 ? content.length : places[after] - 1;
    return { begin: after < 0 ? shown.length : after - 1, end: last < 0 ? shown.length : last, ...(next < to ? { markup: "" } : markupBefore(content, from, next)) };
  }

  // What the source has from `from` to the shown character at `next`: all of a list item's number or bullet, if it is part of that.
  function markupBefore(content, from, next) {
    const line = content.lastIndexOf("\n", next - 1) + 1;
    const item = content.slice(line, next).match(LIST_ITEM);
    const isItem = Boolean(item) && from < line + item[0].length;
    return { isItem, markup: isItem ? item[1] : content.slice(from, next).trim() };
  }

  // Puts the mark over its text, or, for markup, where that would stand: an item's in the place of its number or bullet.
  // Without a place it stands at the end of the text.
  function putMark(mark, range, { markup, isItem }, prose) {
    if (!range) prose.node.append(h("p", {}, (mark.append("ends here"), mark)));
    else if (!markup) range.surroundContents(mark);
    else {
      mark.append(markup);
      const item = isItem && range.startContainer.parentElement.closest("li");
      if (item) mark.classList.add("pt-item-mark");
      if (item) item.prepend(mark);
      else range.insertNode(mark);
    }
  }

  P.Compare = class {
    // `cards()`: the cards of the open candidates.
    constructor(cards) {
      this.cards = cards;
      this.isOn = false;
      this.button = P.button("compare", "Compare", () => this.toggle(), { class: "pt-button pt-compare", "aria-pressed": "false", hidden: true });
    }

    // With finished answers only; whatever changes ends it.
    update(canCompare) {
      this.button.hidden = !canCompare;
      if (!canCompare && this.isOn) this.clear();
    }

    // The button by key; whether there is something to compare.
    press() {
      if (!this.button.hidden) this.toggle();
      return !this.button.hidden;
    }

    toggle() {
      if (this.isOn) this.clear();
      else this.draw();
    }

    async draw() {
      this.setOn(true);
      const cards = this.cards();
      try {
        const { answers } = await P.api("GET", `messages/${cards[0].message.id}/partings`);
        if (!this.isOn) return;
        const ranges = cards.map((card) => this.markCard(card, answers.find((answer) => answer.message_id === card.message.id)));
        CSS.highlights?.set("pt-common", new Highlight(...ranges));
        P.say(`${matchMedia("(hover: none)").matches ? "Tap a mark" : "Point at a mark, or tab to it,"} to see what the model thought there.`);
      } catch (error) {
        this.clear();
        P.failureToast(`Not compared: ${error.message}`);
      }
    }

    // Returns the range of the text before the mark.
    markCard(card, { at_token, start, end }) {
      const { message, prose } = card;
      const nodes = P.places.textNodes(prose.node);
      const shown = nodes.map((node) => node.data).join("");
      const stretch = shownStretch(message, shown, start, end);
      const range = start < end ? markRange(nodes, stretch.begin, stretch.end) : null;
      const words = range ? stretch.markup || range.toString().trim() : "its end";
      const mark = h("mark", { class: "pt-leaves", tabindex: 0, role: "button", "aria-label": `${P.answerName(message).replace("answer", "Answer")} goes its own way with “${words}”` });
      putMark(mark, range, stretch, prose);
      this.listen(mark, message.id, at_token);
      const common = document.createRange();
      common.setStart(prose.node, 0);
      common.setEndBefore(mark);
      return common;
    }

    listen(mark, messageId, atToken) {
      let choices = null;
      const show = async () => {
        mark.setAttribute("aria-describedby", "pt-choices");
        choices ??= P.api("GET", `messages/${messageId}/choices?at_token=${atToken}`);
        try {
          const found = (await choices).choices;
          if (mark.matches(":hover, :focus")) showChoices(mark, found);
        } catch (error) {
          choices = null;
          P.failureToast(`Not known: ${error.message}`);
        }
      };
      for (const type of ["pointerenter", "focus"]) mark.addEventListener(type, show);
      for (const type of ["pointerleave", "blur"]) mark.addEventListener(type, hidePopup);
    }

    setOn(isOn) {
      this.isOn = isOn;
      this.button.setAttribute("aria-pressed", String(isOn));
    }

    clear() {
      this.setOn(false);
      hidePopup();
      CSS.highlights?.delete("pt-common");
      for (const card of this.cards()) card.prose.redraw();
    }
  };

  document.addEventListener("scroll", () => popup && placePopup(), { capture: true, passive: true });
})(window.Pageturn);
