// Two panels of facts: memory as other policies would hold it, and the machine with its model.
"use strict";

(function (P) {
  const { h } = P;
  const POLICIES = [
    ["paged", "Paged (this engine)"],
    ["exact", "Contiguous, exact length"],
    ["pow2", "Contiguous, next power of two"],
    ["max_len", "Contiguous, full context"],
  ];

  function fill(list, facts) {
    const texts = facts.filter(Boolean);
    if (list.children.length !== texts.length) list.replaceChildren(...texts.map(() => h("div", {}, h("dt"), h("dd"))));
    texts.forEach(([name, value], index) => {
      const [term, description] = list.children[index].children;
      P.setText(term, name);
      P.setText(description, value);
    });
  }

  P.MemoryPanel = class {
    constructor(panel) {
      [this.bars, this.basis, this.facts] = [".pt-bars", ".pt-fit-basis", "[data-facts]"].map((name) => panel.querySelector(name));
      this.saved = { by_forks: 0, by_prefix_cache: 0 };
      this.bars.append(...POLICIES.map(([key, label]) => h("li", { "data-policy": key }, h("span", {}, label), h("span", { class: "pt-share" }, h("i")), h("b", {}, "–"), h("span", { class: "pt-fit" }))));
    }

    // From the topic `requests`, whose numbers are all of one moment.
    noteSavings(saved) {
      this.saved = saved;
    }

    update(stats) {
      const { model } = stats;
      const bytesPerToken = model.bytes_per_block / model.block_size;
      const isLive = stats.requests.running > 0;
      const bytes = stats.counterfactual_bytes;
      const fit = (key) => `${P.number(Math.floor((pool * stats.requests.running) / bytes[key]))} would fit`;
      const pool = stats.blocks.total * model.bytes_per_block;
      const most = Math.max(...POLICIES.map(([key]) => bytes[key]), 1);
      for (const [key] of POLICIES) {
        const row = this.bars.querySelector(`[data-policy="${key}"]`);
        row.querySelector("i").style.width = `${(100 * bytes[key]) / most}%`;
        P.setText(row.querySelector("b"), P.bytes(bytes[key]));
        P.setText(row.querySelector(".pt-fit"), bytes[key] > 0 ? fit(key) : "–");
      }
      this.bars.hidden = !isLive;
      P.setText(this.basis, isLive ? "and how many sequences like those that run the pool would hold" : "Nothing runs, so nothing is held now. While answers are written, this compares their memory with that of other ways to keep it.");
      this.updateFacts(stats, bytesPerToken);
    }

    updateFacts(stats, bytesPerToken) {
      const { internal_fragmentation: waste, counters, model } = stats;
      const blocks = (count) => `${P.plural(count, "block")}, ${P.bytes(count * model.bytes_per_block)}`;
      fill(this.facts, [
        ["Internal fragmentation", `${P.bytes(waste.bytes)}, ${P.percent(waste.share, 1)} of the blocks in use`],
        ["Saved by forks, now", blocks(this.saved.by_forks)],
        ["Saved by the prefix cache, now", blocks(this.saved.by_prefix_cache)],
        ["Not computed again since start", `${P.number(counters.prefix_hits)} tokens, ${P.bytes(counters.prefix_hits * bytesPerToken)}`],
      ]);
    }
  };

  function gpuFact(gpu) {
    if (!gpu) return null;
    const load = gpu.utilisation === null ? "load unknown" : `${P.percent(gpu.utilisation, 1)} busy`;
    return ["GPU", `${gpu.name}: ${load}, ${P.bytes(gpu.memory_used_bytes)} of ${P.bytes(gpu.memory_total_bytes)} memory in use`];
  }

  P.kernels = ({ attention_backend: kernels, device }) => (kernels === device ? `${kernels} kernels` : `${kernels} kernels on ${device}`);

  P.machineFacts = function (list, { model, machine }) {
    const used = machine.memory_total_bytes - machine.memory_available_bytes;
    fill(list, [
      ["Model", `${model.model_name} (${model.architecture}), ${P.count(model.num_parameters)} parameters`],
      ["Quantisation", model.quantization],
      ["Number formats", `${model.dtype}, KV cache ${model.kv_cache_dtype}`],
      ["Attention", `${P.kernels(model)}: ${model.backend_reason}`],
      ["Blocks", `${P.number(model.num_blocks)} of ${model.block_size} tokens, ${P.bytes(model.bytes_per_block)} each`],
      ["Pool", `${P.bytes(model.num_blocks * model.bytes_per_block)}: ${model.num_blocks_reason}`],
      ["Limits", `${P.number(model.max_model_len)} tokens of context, ${P.number(model.max_num_seqs)} sequences, ${P.number(model.max_num_batched_tokens)} tokens a step`],
      ["Process", `${P.bytes(machine.process.memory_bytes)}, ${machine.process.cpu_cores_in_use.toFixed(1)} cores busy, up ${P.duration(machine.process.uptime_s)}`],
      gpuFact(machine.gpu),
      ["Machine", `${P.percent(machine.cpu_load, 1)} of ${P.plural(machine.num_cpus, "core")}, ${P.bytes(used)} of ${P.bytes(machine.memory_total_bytes)} memory in use`],
    ]);
  };

  P.count = (value) => (value >= 1e9 ? `${(value / 1e9).toFixed(1)} billion` : value >= 1e6 ? `${Math.round(value / 1e6)} million` : P.number(value));
  P.duration = function (s) {
    if (s < 3600) return P.seconds(s);
    return s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  };
})(window.Pageturn);
