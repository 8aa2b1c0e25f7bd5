// How many answers, and at which temperatures: the menus and the dialog that ask for it. {n, temperatures?}
"use strict";

(function (P) {
  const { h } = P;
  const LEAST = 2;
  const MOST = 8;
  const SPREAD = [0.3, 0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8];

  // Temperatures from careful to bold.
  function spread(n) {
    return n === 3 ? [0.3, 0.8, 1.3] : SPREAD.slice(0, n);
  }

  function temperatureField(value, index) {
    const field = h("input", { class: "pt-field", type: "number", min: 0, max: 2, step: 0.05, required: true, name: `t${index}` });
    field.value = value;
    return h("label", { class: "pt-label" }, `Answer ${P.answerLetter(index)}`, field);
  }

  // Asks for a temperature for each answer; `done` gets {n, temperatures}.
  function ask({ action, effect, done }) {
    const count = h("select", { class: "pt-field" }, ...Array.from({ length: MOST - LEAST + 1 }, (_, i) => h("option", { value: i + LEAST }, String(i + LEAST))));
    const fields = h("div", { class: "pt-fields" });
    const draw = () => fields.replaceChildren(...spread(Number(count.value)).map(temperatureField));
    const submit = (event) => {
      event.preventDefault();
      const temperatures = [...fields.querySelectorAll("input")].map((field) => Number(field.value));
      dialog.close();
      done({ n: temperatures.length, temperatures });
    };
    count.value = "3";
    count.addEventListener("change", draw);
    draw();
    const buttons = h("div", { class: "pt-dialog-buttons" }, h("button", { class: "pt-button pt-primary" }, action));
    const note = h("p", { class: "pt-dialog-note" }, `Low is careful, high is bold. ${effect}`);
    const form = h("form", { onsubmit: submit }, h("label", { class: "pt-label" }, "How many answers", count), fields, note, buttons);
    const dialog = P.openDialog("Different temperatures", form);
  }

  // Entries for a menu: the numbers from `least` on, then the dialog, whose button says `action` and whose note tells its `effect`.
  function items({ least, label, chosen, ...wanted }) {
    const counts = Array.from({ length: MOST - least + 1 }, (_, i) => i + least);
    const entries = counts.map((n) => ({ label: label(n), checked: chosen === undefined ? undefined : n === chosen, onclick: () => wanted.done({ n }) }));
    return [...entries, { label: "Different temperatures…", onclick: () => ask(wanted) }];
  }

  // For an answer: `done` asks for others at once.
  const again = (done) => items({ least: LEAST, label: (n) => `Regenerate ×${n}`, action: "Regenerate", effect: "All answers share the memory of the prompt.", done });

  // For the messages to come: `done` takes the wish and asks for nothing. `wish` is the one in force.
  function forMessages(wish, done) {
    const chosen = wish.temperatures ? 0 : wish.n;
    return items({ least: 1, label: (n) => P.plural(n, "answer"), chosen, action: "Use for my messages", effect: "Nothing is sent yet: your next messages get these answers, until you choose otherwise.", done });
  }

  P.several = { MOST, again, forMessages };
})(window.Pageturn);
