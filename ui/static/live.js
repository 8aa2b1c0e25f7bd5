// What is known of running generations: the rendered text of each candidate so far, and whether it waits for its first words,
// which may follow text that was kept of another answer; once it has ended its Markdown. Pure bookkeeping, no elements.
"use strict";

(function (P) {
  const generations = new Map();

  function get(id) {
    if (!generations.has(id)) generations.set(id, { parts: new Map(), progress: null });
    return generations.get(id);
  }

  function part(generation, index) {
    if (!generation.parts.has(index)) generation.parts.set(index, { html: "", tail: "", text: undefined, waits: false, ended: null });
    return generation.parts.get(index);
  }

  function snapshot(frame) {
    const generation = get(frame.generation_id);
    generation.parts.clear();
    const waits = frame.seq < 0;
    frame.renders.forEach(({ html, tail }, index) => Object.assign(part(generation, index), { html, tail, waits }));
    for (const ended of frame.candidates || []) Object.assign(part(generation, ended.index), { ended, text: frame.texts[ended.index] });
    return generation;
  }

  function render(frame) {
    const changed = part(get(frame.generation_id), frame.index);
    changed.html = frame.final ? frame.html : changed.html + frame.html;
    changed.tail = frame.tail;
    changed.waits = false;
    changed.text = frame.text;
  }

  function candidate(frame) {
    part(get(frame.generation_id), frame.index).ended = frame;
  }

  const ends = (id) => [...get(id).parts.values()].map((each) => each.ended);
  const reasons = (id) => ends(id).map((end) => end?.finish_reason);

  // The receipt of a stop: of the whole generation so far, since its candidates end one by one.
  function receipt(id) {
    const kvs = ends(id).filter((end) => end?.finish_reason === "abort" && end.kv).map((end) => end.kv);
    if (!kvs.length) return "";
    const sum = (key) => kvs.reduce((total, kv) => total + kv[key], 0);
    return P.receiptLine({ blocks_released: sum("blocks_released"), release_ms: sum("release_ms") });
  }

  // How a generation that nobody stopped has ended.
  function endLine(reasons) {
    const several = reasons.length > 1;
    const count = (reason) => reasons.filter((other) => other === reason).length;
    const [failed, cut] = [count("error"), count("length")];
    if (failed) return several ? `${failed} of ${reasons.length} answers failed.` : "The answer failed.";
    if (cut) return several ? `${cut} of ${reasons.length} answers reached the length limit.` : "The answer reached the length limit.";
    return several ? "All answers are complete." : "The answer is complete.";
  }

  P.live = { reasons, receipt, endLine, get, part, snapshot, render, candidate, forget: (id) => generations.delete(id) };
})(window.Pageturn);
