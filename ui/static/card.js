// One open candidate: its text, what it costs and how it ended, and what can be done with it.
"use strict";

(function (P) {
  const { h } = P;

  // There is no key for a larger number.
  P.LAST_KEY = 9;

  P.Card = class {
    // `actions`: pick(message), stop(index), goOn(message, place), regenerate(message, {n}), focus(message).
    constructor(message, actions) {
      this.actions = actions;
      this.prose = new P.Prose();
      this.wait = h("div", { class: "pt-wait" });
      this.temperature = h("span", { title: "Temperature" });
      this.ended = h("span", { class: "pt-ended" });
      this.stop = P.iconButton("stop", "Stop", () => actions.stop(this.message.candidate_index), { class: "pt-icon-button pt-stop-one" });
      this.usage = h("p", { class: "pt-usage" });
      this.note = h("p", { class: "pt-note" });
      this.use = P.button("check", "Use this", () => actions.pick(this.message), { class: "pt-button pt-primary pt-use" });
      this.goOn = P.iconButton("goon", "Continue", () => actions.goOn(this.message, {}));
      this.again = P.iconButton("again", "Try again", () => actions.regenerate(this.message, { n: 1 }));
      this.copy = P.iconButton("copy", "Copy", (event) => P.copyText(this.message.content, event.currentTarget));
      this.body = h("div", { class: "pt-card-body", tabindex: 0, role: "group" }, this.prose.node, this.wait);
      this.heading = h("h3", {});
      const head = h("header", {}, this.heading, this.temperature, this.ended, this.stop);
      const foot = h("footer", {}, this.note, this.usage, h("div", { class: "pt-card-buttons" }, this.use, this.goOn, this.again, this.copy));
      this.node = h("article", { class: "pt-card", "data-id": message.id }, head, this.body, foot);
      this.key = h("kbd", {});
      this.use.append(this.key);
      this.follows = true;
      this.body.addEventListener("scroll", () => (this.follows = this.atEnd()));
      for (const type of ["focusin", "pointerdown"]) this.node.addEventListener(type, () => actions.focus(this.message));
      this.update(message, [message]);
    }

    atEnd() {
      return this.body.scrollHeight - this.body.scrollTop - this.body.clientHeight < 40;
    }

    // `all`: the messages of all cards. What they have in common is not said in each.
    update(message, all) {
      this.message = message;
      const generating = message.status === "generating";
      this.node.dataset.status = message.status;
      this.setName(P.answerName(message), P.answerKey(message), all.length);
      this.stop.hidden = !generating;
      this.goOn.hidden = generating || !P.isCutShort(message);
      this.again.hidden = message.status !== "error";
      this.copy.hidden = generating || !message.content;
      P.setText(this.temperature, new Set(all.map(P.temperatureLine)).size > 1 ? P.temperatureLine(message) : "");
      P.setText(this.ended, P.endLabel(message));
      P.setText(this.usage, generating ? "writing…" : P.usageLine({ usage: message.usage, timings: { tokens_per_second: message.timings?.tokens_per_second } }));
      this.usage.title = P.blocksLine(message.kv);
      const note = P.endNote(message);
      P.setText(this.note, note && ["error", "interrupted"].includes(message.status) ? note.text : "");
      if (!generating || this.prose.isEmpty) this.prose.set(message.html, "");
      if (!generating) this.wait.replaceChildren();
    }

    setName(name, key, count) {
      const title = name.replace("answer", "Answer");
      P.setText(this.heading, title);
      P.setText(this.key, String(key));
      this.key.hidden = key > P.LAST_KEY;
      this.node.setAttribute("aria-label", `${title}, ${key} of ${count}`);
      this.body.setAttribute("aria-label", `Text of ${name}`);
      const labels = [[this.stop, `Stop ${name}`], [this.goOn, `Continue ${name}`], [this.again, `Try ${name} again`], [this.copy, `Copy ${name}`]];
      for (const [button, label] of labels) for (const key of ["title", "aria-label"]) button.setAttribute(key, label);
    }

    // Whether a new message would continue this one.
    setCurrent(current) {
      this.node.classList.toggle("pt-current", current);
      if (current) this.node.setAttribute("aria-current", "true");
      else this.node.removeAttribute("aria-current");
    }

    // For who has followed the end; nobody who reads elsewhere is moved.
    toBeginning() {
      if (this.follows) this.body.scrollTop = 0;
    }

    setLive(part, progress) {
      this.prose.set(part.html, part.tail);
      this.wait.replaceChildren(...(part.waits || this.prose.isEmpty ? [P.progressNode(progress)] : []));
      if (this.follows) this.body.scrollTop = this.body.scrollHeight;
    }
  };
})(window.Pageturn);
