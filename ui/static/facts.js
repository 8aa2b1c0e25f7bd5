// What is known of an answer: the short line under it, and all of it on demand.
"use strict";

(function (P) {
  const { h } = P;

  // What an answer is called beside those that were asked for with it: a letter, as versions of a turn have numbers.
  P.answerLetter = (index) => (index < 26 ? String.fromCharCode(65 + index) : String(index + 1));
  P.answerName = ({ candidate_index }) => `answer ${P.answerLetter(candidate_index)}`;

  // The number that picks it.
  P.answerKey = ({ candidate_index }) => candidate_index + 1;

  // "T 1.3", as far as it is known.
  P.temperatureLine = ({ sampling }) => (sampling?.temperature === undefined ? "" : `T ${sampling.temperature}`);

  // Tokens that a continued answer has from before; its other numbers are of its last part.
  const keptTokens = (usage) => usage?.kept_tokens ?? 0;

  function lengthLine(usage) {
    const kept = keptTokens(usage);
    const whole = P.plural(kept + usage.completion_tokens, "token");
    return kept ? `${whole}, the last ${P.number(usage.completion_tokens)} new` : whole;
  }

  // "128 tokens · 61.2 tokens/s · first after 210 ms", as far as it is known.
  P.usageLine = function (message) {
    const { usage, timings } = message;
    if (!usage) return "";
    const parts = [lengthLine(usage)];
    if (timings?.tokens_per_second) parts.push(`${P.rate(timings.tokens_per_second)} tokens/s`);
    if (timings?.tokens_per_step > 1.05) parts.push(`${timings.tokens_per_step.toFixed(1)} tokens per step`);
    if (timings?.ttft_ms) parts.push(`first after ${P.milliseconds(timings.ttft_ms)}`);
    return parts.join(" · ");
  };

  P.blocksLine = function (kv) {
    return kv ? `shared ${P.plural(kv.blocks_shared, "block")} · private ${kv.blocks_private}` : "";
  };

  P.receiptLine = (kv) => (kv ? `${P.plural(kv.blocks_released, "block")} freed in ${kv.release_ms.toFixed(kv.release_ms < 1 ? 2 : 1)} ms` : "");

  // Why a request ended, in a word or two.
  const END_WORDS = { stop: "complete", length: "length limit", abort: "stopped", error: "failed" };
  P.endWord = (reason) => END_WORDS[reason] ?? reason;

  // The same of an answer that is kept.
  P.endLabel = ({ status, finish_reason }) => (status === "done" ? P.endWord(finish_reason ?? "stop") : { stopped: "stopped", interrupted: "interrupted", error: "failed" }[status] ?? "");

  // How an answer ended, when that is worth a line: {text, retry}.
  P.endNote = function (message) {
    const { status, finish_reason } = message;
    if (status === "stopped") return { text: "Stopped" };
    if (status === "interrupted") return { text: "Interrupted: the server stopped while this was being written.", retry: true };
    if (status === "error") return { text: message.error ? `This answer failed: ${message.error}` : "This answer failed.", retry: true };
    if (finish_reason === "length") return { text: "The length limit was reached here." };
    return null;
  };

  // Whether an answer ended before its own end.
  P.isCutShort = ({ content, status, finish_reason }) => Boolean(content) && (["stopped", "interrupted"].includes(status) || finish_reason === "length");

  // Greedy answers do not depend on their seed.
  const isDrawn = ({ seed, sampling }) => seed !== null && sampling?.temperature !== 0;

  function valueWords(value) {
    if (Array.isArray(value)) return value.map((each) => (typeof each === "string" ? `“${each}”` : String(each))).join(", ");
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  }

  // `useSeed(seed)` is called when a person wants the same draw again.
  function rows(message, useSeed) {
    const { usage, timings, kv, sampling, seed, status } = message;
    const cached = usage?.prompt_tokens_details.cached_tokens;
    const kept = keptTokens(usage);
    const again = () => P.button("again", String(seed), () => useSeed(seed), { class: "pt-button pt-quiet pt-seed", title: "Use this seed for the next answers", "aria-label": `Seed ${seed}: use it again` });
    const others = Object.entries(sampling ?? {}).filter(([key]) => !["temperature", "seed"].includes(key));
    return [
      ["Model", message.model],
      ["Answer", usage && lengthLine(usage)],
      [kept ? "Prompt with what was kept" : "Prompt", usage && `${P.plural(usage.prompt_tokens, "token")}, ${P.number(cached)} of them cached`],
      ["Left out of the prompt", message.dropped_messages ? `the oldest ${P.plural(message.dropped_messages, "message")}` : null],
      [kept ? "Speed of the new part" : "Speed", timings?.tokens_per_second ? `${P.rate(timings.tokens_per_second)} tokens/s` : null],
      ["Tokens per step", timings?.tokens_per_step > 1.05 ? timings.tokens_per_step.toFixed(1) : null],
      [kept ? "First new words after" : "First words after", timings?.ttft_ms ? P.milliseconds(timings.ttft_ms) : null],
      ["Memory", P.blocksLine(kv)],
      ["Stopped", status === "stopped" ? P.receiptLine(kv) : null],
      ["Temperature", sampling?.temperature === undefined ? null : String(sampling.temperature)],
      ...others.map(([key, value]) => [P.conversationSettings.labelOf(key), valueWords(value)]),
      ["Seed", isDrawn(message) ? again() : null],
    ];
  }

  P.factsNode = function (message, useSeed) {
    const known = rows(message, useSeed).filter(([, value]) => value);
    if (!known.length) return h("p", { class: "pt-facts" }, "Nothing is known of how this answer was made.");
    return h("dl", { class: "pt-facts" }, ...known.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  };
})(window.Pageturn);
