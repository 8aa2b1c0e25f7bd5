// Which model answers, what may be expected of it, and how to run another: a line for the empty page, a button for
// wherever else a newcomer looks, and the dialog that both lead to.
"use strict";

(function (P) {
  const { h } = P;
  const SMALL = 1e9;
  const DOCUMENTED = "The README lists the files and formats that can be read.";
  // What the engine says of the model, once asked.
  let known = null;

  async function facts() {
    known ??= (await P.api("GET", "stats")).model;
    return known;
  }

  function isSmall({ num_parameters: count }) {
    return count > 0 && count < SMALL;
  }

  const SMALL_WORDS =
    "That is very small: it runs on any computer and answers at once, but it often repeats itself, loses the thread and makes things up. It is here so that you can try everything; for real work run a larger one.";

  function list(model) {
    const rows = [
      ["Parameters", P.count(model.num_parameters)],
      ["Context", `${P.number(model.max_model_len)} tokens`],
      ["Weights", model.quantization],
      ["Computed by", P.kernels(model)],
    ];
    return h("dl", { class: "pt-facts" }, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  }

  async function open() {
    try {
      const model = await facts();
      const how = h("p", {}, "Another model: start the app again with ", h("code", {}, "--model"), " and a .gguf file, a folder with safetensors, or a hub id:");
      const example = h("pre", { tabindex: 0 }, "make run ARGS=\"--model /path/to/model.gguf\"");
      const size = isSmall(model) ? h("p", {}, `It has ${P.count(model.num_parameters)} parameters. ${SMALL_WORDS}`) : null;
      const body = h("div", { class: "pt-about" }, ...[size, list(model), how, example, h("p", { class: "pt-dialog-note" }, DOCUMENTED)].filter(Boolean));
      P.openDialog(model.model_name, body);
    } catch (error) {
      P.failureToast(`Nothing is known of the model yet: ${error.message}`);
    }
  }

  async function fill(line) {
    const { phase, model } = P.socket.state;
    if (phase !== "ready") return;
    const told = await facts().catch(() => null);
    const words = told && isSmall(told) ? " answers, a very small model on this server." : " answers, on this server.";
    line.replaceChildren(h("strong", {}, model), `${words} Nothing you type leaves it. `, button("About this model"));
  }

  const button = (label) => h("button", { type: "button", class: "pt-link", onclick: open }, label);

  // For the empty page; tells more once the model is ready.
  function line() {
    const node = h("p", { class: "pt-model-line" }, "A local model answers. Nothing you type leaves this server.");
    fill(node);
    return node;
  }

  // The settings have nothing to set of it, but that is where people look for it.
  function mount(element) {
    const name = h("strong", { class: "pt-model-name" });
    element.querySelector(".pt-model-place").append(h("p", {}, name, " · chosen when the app is started. ", button("About this model")));
    P.socket.on("state", (state) => P.setText(name, state.model ?? "Not loaded yet"));
    P.setText(name, P.socket.state.model ?? "Not loaded yet");
  }

  P.socket.on("ready", () => {
    known = null;
    for (const node of document.querySelectorAll(".pt-model-line")) fill(node);
  });
  P.model = { line, open, mount };
})(window.Pageturn);
