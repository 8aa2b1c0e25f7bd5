// Preferences of this browser: sampling and system prompt for new answers, presets, the theme. What a conversation
// says for itself is stored with it on the server and comes first; a new chat's is kept here until its first message.
"use strict";

(function (P) {
  const DEFAULTS = { temperature: 0.8, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1, max_tokens: 1024, n: 1, stop: "", system_prompt: "" };
  const ORDER = Object.keys(DEFAULTS);
  const DRAWING = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
  const PRESETS = {
    Precise: { temperature: 0.2, top_p: 0.9 },
    Balanced: { temperature: 0.8 },
    Creative: { temperature: 1.2, min_p: 0.05 },
  };
  const NO_SETTINGS = { system_prompt: null, when_full: "stop", sampling: {} };
  // Where the slider of the longest answer ends before the model has told how long its context is.
  const USUAL_MOST_TOKENS = 4096;
  // A conversation that has just begun, and what was set for it, until the page is told of it with that: {id, changes}.
  let begun = null;

  const saved = () => P.store.get("sampling", {});
  const stopStrings = (text) => text.split("\n").filter(Boolean);

  // What this browser prefers where a conversation says nothing, in wire form; the server's own defaults are left out.
  function preferred() {
    const own = Object.fromEntries(Object.entries(saved()).filter(([key, value]) => value !== DEFAULTS[key]));
    delete own.system_prompt;
    if (own.stop) own.stop = stopStrings(own.stop);
    return own;
  }

  const has = (settings, changes) =>
    Object.entries(changes).every(([key, value]) => (value instanceof Object ? has(settings[key] ?? {}, value) : settings[key] === value));

  // The settings of the open conversation, or of the chat that the next message begins.
  function current() {
    const id = P.chat.openId();
    if (!id) return { ...NO_SETTINGS, ...P.store.get("new_chat", {}) };
    const told = P.chat.conversation();
    if (begun?.id === id && told && has(told, begun.changes)) begun = null;
    return { ...(told ?? { ...NO_SETTINGS, id }), ...(begun?.id === id ? begun.changes : {}) };
  }

  // The `sampling` of a frame: a conversation that is there knows its own.
  function sampling() {
    const { id, sampling: own } = current();
    const { n, ...common } = { ...preferred(), ...own };
    return Object.fromEntries(Object.entries(common).filter(([key]) => !id || !(key in own)));
  }

  // How many answers a message gets when nobody says otherwise.
  const count = () => current().sampling.n ?? saved().n ?? DEFAULTS.n;

  // Whether the conversation says something for itself that is not shown under the message anyway, as its seed and its answers are.
  function hasOwn() {
    const { system_prompt, when_full, sampling } = current();
    return Boolean(system_prompt) || when_full !== NO_SETTINGS.when_full || Object.keys(sampling).some((key) => !["n", "seed"].includes(key));
  }

  // It is a setting of the conversation like the others.
  const setCount = (n) => change({ sampling: { ...current().sampling, n } });

  const systemPrompt = () => current().system_prompt ?? (saved().system_prompt || null);

  async function change(changes) {
    const id = P.chat.openId();
    if (id) await store(id, changes);
    else P.store.set("new_chat", { ...P.store.get("new_chat", {}), ...changes });
    document.dispatchEvent(new Event("pageturn:settings"));
  }

  // They hold at once: the frame that tells of them may come later.
  async function store(id, changes) {
    await P.api("PATCH", `conversations/${id}`, changes);
    if (begun?.id === id) begun = null;
    const conversation = P.chat.conversation();
    if (conversation?.id === id) Object.assign(conversation, changes);
  }

  // What was set for a new chat and its first frame could not bring is kept by the conversation that it has become.
  async function keepNewChat(id) {
    const { sampling: own = {}, when_full = "stop" } = P.store.get("new_chat", {});
    P.store.set("new_chat", null);
    const changes = { ...(Object.keys(own).length ? { sampling: own } : {}), ...(when_full === "stop" ? {} : { when_full }) };
    if (!Object.keys(changes).length) return;
    begun = { id, changes };
    await P.api("PATCH", `conversations/${id}`, changes).catch((error) => {
      begun = null;
      P.failureToast(`Settings not kept: ${error.message}`);
    });
  }

  // For a message that does not fit: from now on the oldest turns are left out of the prompts.
  async function dropOldest(again) {
    try {
      await change({ when_full: "drop_oldest" });
      again();
    } catch (error) {
      P.failureToast(`Not changed: ${error.message}`);
    }
  }

  async function useSeed(seed) {
    const { sampling } = current();
    try {
      await change({ sampling: { ...sampling, seed } });
      P.toastHere(`Seed ${seed} is used for the next answers`, "Undo", () => change({ sampling }));
    } catch (error) {
      P.failureToast(`Not set: ${error.message}`);
    }
  }

  // --- the controls of the tab: this browser's defaults -------------------------------------------

  const values = () => ORDER.map((key) => (key === "max_tokens" ? longestAnswer() : (saved()[key] ?? DEFAULTS[key])));

  // What the shell needs to know of the slider: it ends with the model's context.
  function longestAnswer() {
    const value = saved().max_tokens ?? DEFAULTS.max_tokens;
    return { value, maximum: Math.max(P.socket.state.max_model_len ?? USUAL_MOST_TOKENS, value), __type__: "update" };
  }

  const load = () => [...values(), P.store.get("theme", "System")];

  function save(...given) {
    P.store.set("sampling", { ...saved(), ...Object.fromEntries(ORDER.map((key, i) => [key, given[i]])) });
    document.dispatchEvent(new Event("pageturn:settings"));
  }

  function reset() {
    P.store.set("sampling", null);
    return values();
  }

  // A preset says everything about drawing and nothing about the rest.
  function usePreset(preset) {
    const kept = Object.fromEntries(Object.entries(saved()).filter(([key]) => !DRAWING.includes(key)));
    P.store.set("sampling", { ...kept, ...preset });
  }

  // What is set about drawing, as a preset.
  const drawing = () => Object.fromEntries(Object.entries(saved()).filter(([key, value]) => DRAWING.includes(key) && value !== DEFAULTS[key]));

  const presets = () => ({ ...PRESETS, ...P.store.get("presets", {}) });
  const isOwnPreset = (name) => name in P.store.get("presets", {});

  function savePreset(name, drawing) {
    const own = { ...P.store.get("presets", {}), [name]: drawing };
    if (!drawing) delete own[name];
    P.store.set("presets", own);
    document.dispatchEvent(new Event(P.presets.CHANGED));
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

  P.settings = { DEFAULTS, DRAWING, current, sampling, preferred, count, hasOwn, setCount, systemPrompt, change, keepNewChat, dropOldest, useSeed, values, load, save, reset, usePreset, drawing, presets, isOwnPreset, savePreset, stopStrings, setTheme };
})(window.Pageturn);
