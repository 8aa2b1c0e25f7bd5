// Preferences of this browser: sampling defaults for new answers, the theme; and the open conversation's system prompt.
"use strict";

(function (P) {
  const DEFAULTS = { temperature: 0.8, top_p: 1, max_tokens: 1024 };

  // A preference that equals the server's default is not sent, so that a conversation's own sampling can speak.
  function sampling() {
    const saved = P.store.get("sampling", {});
    return Object.fromEntries(Object.entries(saved).filter(([key, value]) => value !== DEFAULTS[key]));
  }

  function load() {
    const saved = { ...DEFAULTS, ...P.store.get("sampling", {}) };
    return [saved.temperature, saved.top_p, saved.max_tokens, P.store.get("theme", "System")];
  }

  function save(temperature, top_p, max_tokens) {
    P.store.set("sampling", { ...P.store.get("sampling", {}), temperature, top_p, max_tokens });
  }

  function reset() {
    P.store.set("sampling", null);
    return [DEFAULTS.temperature, DEFAULTS.top_p, DEFAULTS.max_tokens];
  }

  const darkSystem = matchMedia("(prefers-color-scheme: dark)");

  function applyTheme() {
    const theme = P.store.get("theme", "System");
    const dark = theme === "Dark" || (theme === "System" && darkSystem.matches);
    if (document.body.classList.contains("dark") !== dark) document.body.classList.toggle("dark", dark);
  }

  function setTheme(theme) {
    P.store.set("theme", theme);
    applyTheme();
  }

  // The shell sets its own class while it mounts: ours is the one that stays.
  function watchTheme() {
    applyTheme();
    new MutationObserver(applyTheme).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    darkSystem.addEventListener("change", applyTheme);
  }
  if (document.body) watchTheme();
  else document.addEventListener("DOMContentLoaded", watchTheme);

  // The island under the sliders: the system prompt belongs to a conversation, so it follows the open one.
  function systemPrompt(element) {
    const area = element.querySelector("textarea");
    const note = element.querySelector(".pt-system-note");
    const save = element.querySelector("button");
    let shown = null;

    function show() {
      const conversation = P.chat.conversation();
      const id = conversation?.id ?? null;
      area.disabled = save.disabled = id === null;
      P.setText(note, id ? `For “${conversation.title}”. Takes effect with the next message.` : "Open a conversation, or send a first message, to give it a system prompt.");
      if (id !== shown) area.value = conversation?.system_prompt ?? "";
      shown = id;
    }

    save.addEventListener("click", async () => {
      try {
        await P.api("PATCH", `conversations/${shown}`, { system_prompt: area.value.trim() || null });
        P.toast("System prompt saved");
      } catch (error) {
        P.failureToast(`Not saved: ${error.message}`);
      }
    });
    P.socket.on("conversation", show);
    document.addEventListener("pageturn:open", show);
    show();
  }

  P.settings = { sampling, load, save, reset, setTheme, systemPrompt };
})(window.Pageturn);
