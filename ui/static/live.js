// What is known of running generations: the text of each candidate so far, and whether it waits for its first words,
// which may follow text that was kept of another answer. Pure bookkeeping, no elements.
"use strict";

(function (P) {
  const generations = new Map();

  function get(id) {
    if (!generations.has(id)) generations.set(id, { parts: new Map(), progress: null });
    return generations.get(id);
  }

  function part(generation, index) {
    if (!generation.parts.has(index)) generation.parts.set(index, { html: "", tail: "", waits: false, ended: null });
    return generation.parts.get(index);
  }

  function snapshot(frame) {
    const generation = get(frame.generation_id);
    generation.parts.clear();
    const waits = frame.seq < 0;
    frame.renders.forEach(({ html, tail }, index) => Object.assign(part(generation, index), { html, tail, waits }));
    for (const ended of frame.candidates || []) part(generation, ended.index).ended = ended;
    return generation;
  }

  function render(frame) {
    const changed = part(get(frame.generation_id), frame.index);
    changed.html = frame.final ? frame.html : changed.html + frame.html;
    changed.tail = frame.tail;
    changed.waits = false;
    return changed;
  }

  function candidate(frame) {
    part(get(frame.generation_id), frame.index).ended = frame;
  }

  P.live = { get, part, snapshot, render, candidate, forget: (id) => generations.delete(id) };
})(window.Pageturn);
