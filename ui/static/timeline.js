// What happened to one request: a curve of the blocks it held, with its events marked, and the same in words.
"use strict";

(function (P) {
  const { h } = P;
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDTH, HEIGHT, TOP] = [1000, 120, 22];
  const REFRESH_MS = 1000;
  const MARKED = new Set(["started", "fork", "first_token", "copy_on_write", "preempted", "resumed", "end"]);
  const WORDS = {
    queued: (e) => `queued, ${P.plural(e.num_tokens, "prompt token")}`,
    started: (e) => (e.num_tokens ? `started, ${P.plural(e.num_tokens, "token")} from the prefix cache` : "started"),
    chunk: (e) => `${P.plural(e.num_tokens, "token")} computed`,
    fork: (e) => `answer ${P.answerLetter(e.index)} forked`,
    first_token: (e) => `first token of answer ${P.answerLetter(e.index)}`,
    block: (e) => `a block begun at token ${P.number(e.num_tokens)}`,
    copy_on_write: (e) => `a shared block copied for answer ${P.answerLetter(e.index)}`,
    preempted: (e) => `answer ${P.answerLetter(e.index)} preempted`,
    resumed: (e) => `answer ${P.answerLetter(e.index)} resumed${e.num_tokens ? `, ${P.plural(e.num_tokens, "token")} from the prefix cache` : ""}`,
    end: (e) => `answer ${P.answerLetter(e.index)} ended (${P.endWord(e.reason)}), ${P.plural(e.num_tokens, "token")}`,
  };

  function svg(tag, attributes, text) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text) node.textContent = text;
    return node;
  }

  P.Timeline = class {
    constructor(element) {
      Object.assign(this, { element, id: null, timer: 0 });
    }

    // Show a request, or nothing.
    async open(id) {
      if (id !== this.id) this.element.replaceChildren();
      this.id = id;
      clearTimeout(this.timer);
      if (id !== null) await this.refresh(id);
    }

    async refresh(id) {
      const told = await P.api("GET", `requests/${id}`).catch((error) => ({ error }));
      if (this.id !== id) return;
      if (told.error) this.element.replaceChildren(h("p", { class: "pt-none" }, told.error.message));
      else this.draw(told);
      if (!told.error && told.state !== "finished") this.timer = setTimeout(() => this.refresh(id), REFRESH_MS);
    }

    rename(title) {
      const heading = this.element.querySelector("h4");
      if (heading) P.setText(heading, title);
    }

    draw(told) {
      const end = Math.max(told.age_s, told.events.at(-1).time_s, 1e-3);
      const most = Math.max(1, ...told.events.map((event) => event.num_blocks));
      const facts = [`${P.plural(most, "block")} at most`, told.queue_ms === null ? null : `queued ${P.milliseconds(told.queue_ms)}`, told.ttft_ms === null ? null : `first token after ${P.milliseconds(told.ttft_ms)}`, P.seconds(end)];
      const items = told.events.map((event) => h("li", { "data-kind": event.kind }, h("time", {}, P.milliseconds(event.time_s * 1e3)), h("span", {}, WORDS[event.kind](event)), h("span", { class: "pt-held" }, P.plural(event.num_blocks, "block"))));
      const list = this.element.querySelector("ol");
      const scrolled = list?.scrollTop ?? 0;
      this.element.replaceChildren(
        h("h4", {}, P.requestName(told)),
        h("p", { class: "pt-soft" }, facts.filter(Boolean).join(" · ")),
        this.chart(told.events, end, most),
        h("ol", { tabindex: "0", "aria-label": "Events" }, ...items),
      );
      this.element.querySelector("ol").scrollTop = scrolled;
    }

    // The curve with its scales: blocks at the left, time beneath.
    chart(events, end, most) {
      const blocks = h("div", { class: "pt-scale-blocks", "aria-hidden": "true" }, h("span", {}, P.plural(most, "block")), h("span", {}, "0"));
      const times = h("div", { class: "pt-scale-time", "aria-hidden": "true" }, ...[0, 0.25, 0.5, 0.75, 1].map((share) => h("span", {}, share ? P.milliseconds(1e3 * end * share) : "0")));
      return h("div", { class: "pt-life-chart" }, blocks, this.curve(events, end, most), times);
    }

    // Blocks held over time, as steps; a line for each event that is not a matter of course.
    curve(events, end, most) {
      const x = (time) => ((time / end) * WIDTH).toFixed(1);
      const y = (blocks) => (HEIGHT - ((HEIGHT - TOP) * blocks) / most).toFixed(1);
      const figure = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "pt-curve", role: "img", "aria-label": `Blocks held over time, ${most} at most` });
      const steps = events.map((event) => `H${x(event.time_s)}V${y(event.num_blocks)}`).join("");
      figure.append(svg("path", { d: `M0 ${HEIGHT}${steps}H${x(end)}V${HEIGHT}Z`, class: "pt-curve-area" }));
      for (const event of events) {
        if (!MARKED.has(event.kind)) continue;
        const mark = svg("line", { x1: x(event.time_s), x2: x(event.time_s), y1: 0, y2: HEIGHT, class: `pt-event pt-event-${event.kind}` });
        mark.append(svg("title", {}, WORDS[event.kind](event)));
        figure.append(mark);
      }
      return figure;
    }
  };
})(window.Pageturn);
