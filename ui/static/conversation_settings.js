// The dialog with the settings of the open conversation, or of the chat that the next message begins: what is left
// empty is as the browser's defaults say.
"use strict";

(function (P) {
  const { h } = P;
  const DRAWING = [
    ["temperature", "Temperature", { min: 0, max: 2, step: 0.05 }, "0 always takes the likeliest word"],
    ["top_p", "Top p", { min: 0, max: 1, step: 0.01 }, "draw from the likeliest words only"],
    ["top_k", "Top k", { min: 0, step: 1 }, "so many words at most; 0 is off"],
    ["min_p", "Min p", { min: 0, max: 1, step: 0.01 }, "no word below this share of the best"],
    ["repetition_penalty", "Repetition penalty", { min: 0.01, max: 10, step: 0.01 }, "1 is off"],
    ["seed", "Seed", { min: 0, max: 2 ** 53 - 1, step: 1 }, "empty: a new one each time"],
  ];
  const EXTENT = [
    ["n", "Answers", { min: 1, max: 8, step: 1 }, "to each message, side by side"],
    ["max_tokens", "Longest answer", { min: 1, step: 1 }, "in tokens"],
  ];
  const NUMBERS = [...DRAWING, ...EXTENT];
  let defaults = null;

  async function templateDefault() {
    if (P.socket.state.phase !== "ready") return undefined;
    defaults ??= await P.api("GET", "defaults");
    return defaults.system_prompt;
  }

  function numberField([name, label, limits, hint], own, inherited) {
    const field = h("input", { class: "pt-field", type: "number", name, placeholder: String(inherited[name] ?? ""), ...limits });
    field.value = own[name] ?? "";
    return h("label", { class: "pt-label" }, label, field, h("small", {}, hint));
  }

  function area(name, label, value, placeholder, hint) {
    const field = h("textarea", { class: "pt-field", name, rows: 3, placeholder });
    field.value = value;
    return h("label", { class: "pt-label" }, label, field, h("small", {}, hint));
  }

  function choice(value, label, hint, chosen) {
    const input = h("input", { type: "radio", name: "when_full", value, checked: value === chosen });
    return h("label", { class: "pt-choice" }, input, h("span", {}, label, h("small", {}, hint)));
  }

  const WHEN_FULL = [
    ["stop", "Stop and say so", "You decide what to do: a new chat, a shorter message, another branch."],
    ["drop_oldest", "Leave the oldest turns out of the prompt", "The model forgets them. The conversation itself keeps everything."],
  ];

  const section = (title, ...parts) => h("fieldset", { class: "pt-section" }, h("legend", {}, title), ...parts);

  // --- presets ---------------------------------------------------------------------------------------

  // What a preset leaves at its default is left empty, unless this browser would put something else there.
  function presetRow({ elements }, inherited) {
    const { DEFAULTS, DRAWING: keys } = P.settings;
    const left = (key) => (inherited[key] === DEFAULTS[key] ? "" : DEFAULTS[key]);
    const fill = (preset) => keys.forEach((key) => (elements[key].value = preset[key] ?? left(key)));
    const now = () => Object.fromEntries(keys.map((key) => [key, Number(elements[key].value === "" ? inherited[key] : elements[key].value)]));
    const keep = (name) => {
      const filled = keys.filter((key) => elements[key].value !== "");
      P.settings.savePreset(name, Object.fromEntries(filled.map((key) => [key, Number(elements[key].value)])));
    };
    return new P.PresetRow({ fill, keep, now });
  }

  // --- the dialog ------------------------------------------------------------------------------------

  function read(form) {
    const { elements } = form;
    const kept = Object.entries(P.settings.current().sampling).filter(([key]) => key !== "stop" && !NUMBERS.some(([name]) => name === key));
    const filled = NUMBERS.filter(([name]) => elements[name].value !== "").map(([name]) => [name, Number(elements[name].value)]);
    const stop = P.settings.stopStrings(elements.stop.value);
    return {
      system_prompt: elements.system_prompt.value.trim() || null,
      when_full: elements.when_full.value,
      sampling: Object.fromEntries([...kept, ...filled, ...(stop.length ? [["stop", stop]] : [])]),
    };
  }

  async function fillDefault(field, note) {
    const text = await templateDefault().catch(() => undefined);
    const own = P.store.get("sampling", {}).system_prompt;
    if (!P.chat.conversation() && own) field.placeholder = own;
    else if (text) field.placeholder = text;
    if (text !== undefined) P.setText(note, text ? `Empty: the model's own template says “${text}”.` : "Empty: the model gets none.");
  }

  function open() {
    const settings = P.settings.current();
    const own = settings.sampling;
    const inherited = { ...P.settings.DEFAULTS, ...P.settings.preferred() };
    const stop = [own.stop ?? []].flat().join("\n");
    const prompt = area("system_prompt", "System prompt", settings.system_prompt ?? "", "", "Empty: the model's own.");
    const error = h("p", { class: "pt-note pt-error", role: "alert", hidden: true });
    const form = h("form", {});
    const save = h("button", { class: "pt-button pt-primary" }, "Save");
    const fields = (numbers) => h("div", { class: "pt-fields" }, ...numbers.map((each) => numberField(each, own, inherited)));
    const drawing = fields(DRAWING);
    form.append(section("What the model is told", prompt), section("How words are drawn", drawing));
    const presets = presetRow(form, inherited);
    drawing.before(presets.chips);
    drawing.after(presets.saver);
    drawing.addEventListener("input", () => presets.mark());
    form.append(
      section("How much it writes", fields(EXTENT), area("stop", "Stop strings", stop, [inherited.stop].flat().join("\n"), "One a line; an answer ends where one would begin.")),
      section("When the context is full", ...WHEN_FULL.map(([value, label, hint]) => choice(value, label, hint, settings.when_full))),
      error,
      h("div", { class: "pt-dialog-buttons" }, P.button(null, "Cancel", () => dialog.close()), save),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await P.settings.change(read(form));
        dialog.close();
        P.toastHere("Settings saved");
      } catch (failure) {
        error.hidden = false;
        P.setText(error, failure.message);
      }
    });
    const title = P.chat.conversation() ? "Settings of this conversation" : "Settings of the new chat";
    const dialog = P.openDialog(title, form);
    fillDefault(form.elements.system_prompt, prompt.querySelector("small"));
    form.elements.system_prompt.focus();
    return dialog;
  }

  // What a person calls a field of `sampling`.
  const labelOf = (field) => (field === "stop" ? "Stop strings" : (NUMBERS.find(([name]) => name === field)?.[1] ?? field));

  P.conversationSettings = { open, labelOf };
})(window.Pageturn);
