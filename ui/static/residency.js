// Chips that say what going on in a branch costs: "instant" while its keys and values are in the KV pool, else the tokens
// to prefill. Asked for only while a chip is in sight, one at a time, and again when an answer has ended.
"use strict";

(function (P) {
  const { h } = P;
  const FRESH_MS = 20000;
  const LIMIT = 500;
  // By message: {time, found}.
  const known = new Map();
  const waiting = new Map();
  let isAsking = false;

  const isFresh = (id) => performance.now() - (known.get(id)?.time ?? -Infinity) < FRESH_MS;

  function write(chip) {
    const { found } = known.get(chip.dataset.residency) ?? {};
    if (!found) return;
    const missing = found.prompt_tokens - found.cached_tokens;
    const [count, unit] = P.plural(missing, "token").split(" ");
    const words = found.instant ? ["instant"] : [`prefill ${count}`, h("span", { class: "pt-wide-only" }, ` ${unit}`)];
    chip.replaceChildren(...words);
    chip.classList.toggle("pt-instant", found.instant);
    const kept = `${P.number(found.cached_tokens)} of ${P.plural(found.prompt_tokens, "token")} are in the KV pool`;
    chip.title = found.instant ? `Going on here starts at once: ${kept}` : `Going on here computes ${P.plural(missing, "token")} first: ${kept}`;
  }

  function keep(id, found) {
    known.delete(id);
    known.set(id, { time: performance.now(), found });
    if (known.size > LIMIT) known.delete(known.keys().next().value);
  }

  async function askNext() {
    const [id] = waiting.keys();
    if (isAsking || id === undefined || P.socket.state.phase !== "ready") return;
    isAsking = true;
    const chips = waiting.get(id);
    waiting.delete(id);
    const found = isFresh(id) ? known.get(id).found : await P.api("GET", `messages/${id}/residency`).catch(() => null);
    if (found && !isFresh(id)) keep(id, found);
    chips.forEach(write);
    isAsking = false;
    askNext();
  }

  const sight = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      const id = target.dataset.residency;
      if (!isIntersecting) waiting.get(id)?.delete(target);
      else if (isFresh(id)) write(target);
      else waiting.set(id, (waiting.get(id) ?? new Set()).add(target));
      if (waiting.get(id)?.size === 0) waiting.delete(id);
    }
    askNext();
  });

  // What is in sight is observed anew, so that it is asked for again.
  function refresh() {
    known.clear();
    for (const chip of document.querySelectorAll("[data-residency]")) {
      sight.unobserve(chip);
      sight.observe(chip);
    }
  }

  function chip(messageId) {
    const node = h("span", { class: "pt-residency", "data-residency": messageId });
    write(node);
    sight.observe(node);
    return node;
  }

  P.socket.on("finished", refresh);
  P.socket.on("ready", refresh);
  P.residency = { chip };
})(window.Pageturn);
