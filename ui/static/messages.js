// One message of the transcript: its text (frozen blocks and a tail), what happened to it, and its buttons.
"use strict";

(function (P) {
  const { h } = P;

  // The text of an answer: `frozen` only grows while it streams, `tail` is replaced. Used by messages and candidates.
  P.Prose = class {
    constructor() {
      this.frozen = h("div", { class: "pt-frozen" });
      this.tail = h("div", { class: "pt-tail" });
      this.node = h("div", { class: "pt-prose" }, this.frozen, this.tail);
      this.frozenHtml = this.tailHtml = "";
    }

    // Writes only what differs, so that a selection in finished text survives.
    set(frozenHtml, tailHtml) {
      if (frozenHtml !== this.frozenHtml) {
        if (this.frozenHtml && frozenHtml.startsWith(this.frozenHtml)) {
          this.frozen.insertAdjacentHTML("beforeend", frozenHtml.slice(this.frozenHtml.length));
        } else {
          this.frozen.innerHTML = frozenHtml;
        }
        this.frozenHtml = frozenHtml;
      }
      if (tailHtml !== this.tailHtml) this.tail.innerHTML = this.tailHtml = tailHtml;
    }

    // Only what the server has rendered: whatever a script has added is gone.
    redraw() {
      this.frozen.innerHTML = this.frozenHtml;
      this.tail.innerHTML = this.tailHtml;
      this.node.replaceChildren(this.frozen, this.tail);
    }

    get isEmpty() {
      return !this.frozenHtml && !this.tailHtml;
    }
  };

  // A person's own words are shown as they were typed.
  P.plainHtml = (text) => {
    const node = h("p", { class: "pt-plain" });
    node.textContent = text;
    return node.outerHTML;
  };

  P.progressNode = function (progress) {
    if (!progress || progress.prompt_tokens <= progress.computed_tokens) {
      return h("div", { class: "pt-thinking", "aria-label": "Waiting for the first words" }, h("i"), h("i"), h("i"));
    }
    const bar = h("progress", { max: progress.prompt_tokens, "aria-label": "Reading the prompt" });
    bar.value = progress.computed_tokens;
    const words = `Reading the prompt: ${P.number(progress.computed_tokens)} of ${P.number(progress.prompt_tokens)} tokens`;
    return h("div", { class: "pt-progress" }, h("span", {}, words), bar);
  };

  P.MessageView = class {
    // `actions`: select(id, view), edit(message, text), regenerate(message, {n, temperatures}), goOn(message, place), useSeed(seed).
    constructor(message, actions) {
      this.id = message.id;
      this.actions = actions;
      this.prose = new P.Prose();
      this.wait = h("div", { class: "pt-wait" });
      this.note = h("div", { class: "pt-note" });
      this.foot = h("footer", { class: "pt-foot" });
      this.facts = h("div", { hidden: true });
      this.node = h("article", { class: `pt-message pt-${message.role}`, "data-id": message.id, tabindex: 0 }, this.prose.node, this.wait, this.note, this.foot, this.facts);
      this.node.addEventListener("keydown", (event) => this.onKey(event));
      this.update(message);
    }

    update(message) {
      this.message = message;
      this.generating = message.status === "generating";
      this.node.dataset.status = message.status;
      const { sibling_ids: siblings } = message;
      this.version = siblings.indexOf(message.id);
      const who = message.role === "user" ? "You" : "Assistant";
      this.node.setAttribute("aria-label", siblings.length > 1 ? `${who}, version ${this.version + 1} of ${siblings.length}` : who);
      this.drawNote();
      this.drawFoot();
      this.drawFacts();
      if (!this.generating || this.prose.isEmpty) this.prose.set(message.role === "user" ? P.plainHtml(message.content) : message.html, "");
      if (!this.generating) this.setProgress(undefined);
    }

    // Live text of a generation; `progress` is null once there is text, undefined when nothing is awaited.
    setLive(part, progress) {
      this.prose.set(part.html, part.tail);
      this.setProgress(part.waits || this.prose.isEmpty ? progress : undefined);
    }

    setProgress(progress) {
      this.wait.replaceChildren(...(progress === undefined ? [] : [P.progressNode(progress)]));
    }

    drawNote() {
      const note = P.endNote(this.message);
      this.note.replaceChildren();
      if (!note || this.message.role === "user") return;
      this.note.append(h("span", {}, note.text));
      if (note.retry) this.note.append(P.button("again", "Retry", () => this.actions.regenerate(this.message, { n: 1 })));
    }

    // What is as it was stays, with the menu that may be open at it.
    drawFoot() {
      const { message } = this;
      const key = JSON.stringify([this.generating, message.sibling_ids, P.isCutShort(message), P.usageLine(message), this.facts.hidden]);
      if (key === this.footKey) return;
      this.footKey = key;
      const focused = this.foot.contains(document.activeElement) ? document.activeElement.dataset.action : null;
      this.foot.replaceChildren(...(this.generating ? [] : this.footParts()));
      if (focused) this.foot.querySelector(`[data-action="${focused}"]`)?.focus({ preventScroll: true });
    }

    footParts() {
      const { message } = this;
      const parts = [];
      if (message.sibling_ids.length > 1) parts.push(this.versionSwitch(), P.residency.chip(message.id));
      parts.push(P.iconButton("copy", "Copy", (event) => P.copyText(this.message.content, event.currentTarget), { "data-action": "copy" }));
      if (message.role === "user") {
        parts.push(P.iconButton("edit", "Edit and resend", () => this.openEditor(), { "data-action": "edit" }));
        return parts;
      }
      if (P.isCutShort(message)) parts.push(P.button("goon", "Continue", () => this.actions.goOn(this.message, {}), { "data-action": "continue", "aria-label": "Continue this answer", title: "Continue", class: "pt-button pt-quiet pt-goon" }));
      parts.push(P.iconButton("again", "Regenerate", () => this.actions.regenerate(this.message, { n: 1 }), { "data-action": "regenerate" }));
      const three = P.button("three", "×3", () => this.actions.regenerate(this.message, { n: 3 }), { "data-action": "three", class: "pt-button pt-quiet pt-joined", "aria-label": "Regenerate ×3" });
      three.lastChild.prepend(h("span", { class: "pt-wide-only" }, "Regenerate "));
      const more = P.menuButton("unfold", "More for this answer", () => this.menuItems(), { "data-action": "several" });
      parts.push(h("span", { class: "pt-pair" }, three, more));
      const facts = { "data-action": "facts", class: "pt-meta", title: "All facts of this answer", "aria-expanded": String(!this.facts.hidden) };
      parts.push(h("button", { type: "button", ...facts, onclick: () => this.toggleFacts() }, P.usageLine(message) || "Facts"));
      return parts;
    }

    menuItems() {
      const { message } = this;
      const place = { label: "Continue from a place…", onclick: () => P.fromHere.choose(this) };
      return [...P.several.again((wish) => this.actions.regenerate(message, wish)), message.content ? place : null];
    }

    toggleFacts() {
      this.facts.hidden = !this.facts.hidden;
      this.drawFoot();
      this.drawFacts();
      this.facts.firstChild?.scrollIntoView({ block: "nearest" });
    }

    // Whoever was in them is at their button again.
    closeFacts() {
      if (this.facts.hidden) return;
      const held = this.facts.contains(document.activeElement);
      this.toggleFacts();
      if (held) this.foot.querySelector('[data-action="facts"]').focus({ preventScroll: true });
    }

    drawFacts() {
      if (this.generating) this.facts.hidden = true;
      this.facts.replaceChildren(...(this.facts.hidden ? [] : [P.factsNode(this.message, this.actions.useSeed)]));
    }

    versionSwitch() {
      const siblings = this.message.sibling_ids;
      const step = (name, label, by) =>
        P.iconButton(name, label, () => this.step(by), { "data-action": name, "aria-disabled": siblings[this.version + by] ? null : "true" });
      const count = h("span", { class: "pt-count" }, `${this.version + 1}/${siblings.length}`);
      return h("span", { class: "pt-versions", role: "group", "aria-label": "Versions" }, step("left", "Previous version", -1), count, step("right", "Next version", 1));
    }

    step(by) {
      const target = this.message.sibling_ids[this.version + by];
      if (target) this.actions.select(target, this);
    }

    onKey(event) {
      if (event.target !== this.node || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      event.preventDefault();
      this.step(event.key === "ArrowLeft" ? -1 : 1);
    }

    openEditor() {
      if (this.node.querySelector(".pt-editor")) return;
      const area = h("textarea", { class: "pt-field", "aria-label": "Your message", rows: 3 });
      const draft = `edit ${this.id}`;
      const close = () => {
        P.composer.saveDraft(draft, "");
        editor.remove();
        this.node.classList.remove("pt-editing");
        this.foot.querySelector('[data-action="edit"]')?.focus();
      };
      const save = async () => area.value.trim() && (await this.actions.edit(this.message, area.value)) && close();
      area.value = P.composer.draftOf(draft) || this.message.content;
      area.addEventListener("input", () => P.composer.saveDraft(draft, area.value));
      area.addEventListener("keydown", (event) => {
        if (event.key === "Escape") (event.stopPropagation(), close());
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), save());
      });
      const { n } = P.composer.wish();
      const send = P.button("up", n > 1 ? `Send ×${n}` : "Send", save, { class: "pt-button pt-primary" });
      const buttons = h("div", { class: "pt-editor-buttons" }, P.button(null, "Cancel", close), send);
      const editor = h("div", { class: "pt-editor" }, area, buttons);
      this.node.classList.add("pt-editing");
      this.prose.node.after(editor);
      area.style.height = `${Math.min(area.scrollHeight + 2, 320)}px`;
      area.focus();
    }
  };

  // Copy buttons of code blocks, wherever they are: text comes and goes, one listener stays.
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".pt-copy-code");
    if (button) P.copyText(button.closest(".pt-code").querySelector("code").textContent, button);
  });

})(window.Pageturn);
