// Under a question that has no answer, because it was deleted or never came: the buttons that ask for one.
"use strict";

(function (P) {
  const { h } = P;

  // The question at the end of what is shown, when no answer to it is there, written or awaited; else null.
  P.unanswered = function ({ view, generation, pending }) {
    const last = view?.messages.at(-1);
    return last?.role === "user" && !view.candidates.length && !generation && !pending ? last : null;
  };

  // `ask(message, {n})` asks for answers.
  P.unansweredNode = function (message, ask) {
    const one = P.button("again", "Answer", () => ask(message, { n: 1 }));
    const three = P.button("three", "×3", () => ask(message, { n: 3 }), { "aria-label": "Three answers" });
    return h("div", { class: "pt-unanswered", role: "group", "aria-label": "No answer yet" }, h("span", {}, "This message has no answer."), one, three);
  };
})(window.Pageturn);
