// Presets: names for values of drawing. A row of them is used, saved, changed and deleted in the settings of a conversation
// and in those of this browser, which keeps the own ones: `chips` to choose from, and `saver` to keep what is set now.
"use strict";

(function (P) {
  const { h } = P;
  const CHANGED = "pageturn:presets";

  P.PresetRow = class {
    // `fill(preset)` takes the values of the one that was chosen, `keep(name)` saves what is set now under a name, and `now()`
    // tells that, for the chip of the preset that it is to be marked.
    constructor({ fill, keep, now }) {
      Object.assign(this, { fill, keep, now });
      this.chips = h("div", { class: "pt-preset-chips", role: "group", "aria-label": "Presets" });
      this.name = h("input", { class: "pt-field", placeholder: "Keep these values as…", maxlength: 40, "aria-label": "Name of a preset" });
      this.name.addEventListener("keydown", (event) => event.key === "Enter" && !event.isComposing && (event.preventDefault(), this.save()));
      this.note = h("small", { role: "status" }, "Your own presets are kept in this browser. To change one, choose it and save it again.");
      this.saver = h("div", { class: "pt-preset-saver" }, this.name, P.button(null, "Save preset", () => this.save()), this.note);
      this.draw();
    }

    draw() {
      this.chips.replaceChildren(h("span", { "aria-hidden": "true" }, "Presets"), ...Object.keys(P.settings.presets()).flatMap((name) => this.chip(name)));
      this.mark();
    }

    // After the values have changed.
    mark() {
      const now = this.now();
      for (const chip of this.chips.querySelectorAll("[data-preset]")) {
        const preset = { ...P.settings.DEFAULTS, ...P.settings.presets()[chip.dataset.preset] };
        chip.setAttribute("aria-pressed", String(P.settings.DRAWING.every((key) => preset[key] === now[key])));
      }
    }

    chip(name) {
      const use = P.button(null, name, () => this.use(name), { "data-preset": name });
      return P.settings.isOwnPreset(name) ? [h("span", { class: "pt-own-preset" }, use, P.iconButton("trash", `Delete preset “${name}”`, () => this.remove(name)))] : [use];
    }

    use(name) {
      this.name.value = P.settings.isOwnPreset(name) ? name : "";
      this.fill(P.settings.presets()[name]);
      this.mark();
    }

    save() {
      const name = this.name.value.trim();
      if (!name) {
        this.name.focus();
        return;
      }
      this.keep(name);
      this.draw();
      P.setText(this.note, `“${name}” is saved, in this browser.`);
    }

    remove(name) {
      P.settings.savePreset(name, undefined);
      this.draw();
      P.setText(this.note, `“${name}” is deleted.`);
      this.name.focus();
    }
  };

  // The row of the settings tab. Its controls are the shell's: `trigger` asks that to show what is saved ("select"), or to
  // tell what they say now ("input"), which comes back to `keep`.
  let asked = null;

  function mount(element, trigger) {
    const fill = (preset) => {
      P.settings.usePreset(preset);
      trigger("select");
    };
    const now = () => ({ ...P.settings.DEFAULTS, ...P.settings.drawing() });
    const row = new P.PresetRow({ fill, now, keep: (name) => ((asked = name), trigger("input")) });
    element.querySelector(".pt-preset-place").append(row.chips, row.saver);
    document.addEventListener(CHANGED, () => row.draw());
    document.addEventListener("pageturn:settings", () => row.mark());
    // Before the tab was seen for the first time nobody has told its controls, nor how long the model's context is.
    P.socket.on("ready", () => trigger("select"));
    trigger("select");
  }

  function keep(...values) {
    P.settings.save(...values);
    P.settings.savePreset(asked, P.settings.drawing());
  }

  P.presets = { CHANGED, mount, keep };
})(window.Pageturn);
