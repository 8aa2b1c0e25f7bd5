// The chat: keeps the open conversation, turns frames into views, and a person's actions into frames.
"use strict";

(function (P) {
  const { h, socket, live } = P;
  const FIRST_SHOWN = 40;
  const EXAMPLES = [
    "Explain in three sentences how a printing press works.",
    "Write a short poem about a lighthouse in the fog.",
    "Give me five ideas for a rainy Sunday, as a list.",
  ];
  // `open` is the conversation's id; `view` its last `conversation` frame; `pending` a message on its way.
  const state = { open: null, view: null, generation: null, pending: null, shown: FIRST_SHOWN, stopping: false };
  const views = new Map();
  let candidates = null;
  let watchingRequests = false;
  let root, log, scroll, jump, banner;
  let sticks = true;

  const isBusy = () => state.generation !== null;

  function canSend() {
    if (socket.state.phase === "loading") return "The model is still loading. Your text is kept.";
    if (socket.state.phase !== "ready") return "No connection to the server. Your text is kept.";
    if (state.pending && !state.pending.error) return "Your last message is still on its way.";
    return isBusy() ? "Wait for the answer, or stop it with Esc." : null;
  }

  const lastUserMessage = () => state.view?.messages.findLast((message) => message.role === "user");

  // --- opening a conversation ------------------------------------------------------------------

  function open(id) {
    if (id === state.open && (id === null || state.view)) return;
    if (state.open) socket.unsubscribe("conversation", state.open);
    Object.assign(state, { open: id, view: null, generation: null, shown: FIRST_SHOWN, stopping: false });
    if (state.pending?.conversation_id !== id) state.pending = null;
    const hash = id ? `#${id}` : "";
    if (location.hash !== hash) history.pushState(null, "", hash || location.pathname + location.search);
    P.composer.open(id);
    P.say("");
    sticks = true;
    if (id) socket.subscribe("conversation", id, (error) => missing(id, error));
    draw();
    document.dispatchEvent(new Event("pageturn:open"));
  }

  function missing(id, error) {
    if (state.open !== id || error.code !== "not_found") return;
    open(null);
    P.toast("That conversation is not there any more.");
  }

  const idInAddress = () => location.hash.slice(1) || null;

  // --- actions -----------------------------------------------------------------------------------

  // Sends a frame that starts a generation; resolves with `started`, shows what was refused.
  async function begin(frame) {
    const sampling = P.settings.sampling();
    if (Object.keys(sampling).length) frame.sampling = sampling;
    P.say("");
    return socket.request(frame);
  }

  async function submit(text, n) {
    const pending = { text, n, conversation_id: state.open, after: lastUserMessage()?.id, error: null };
    state.pending = pending;
    sticks = true;
    draw();
    const frame = { type: "send", content: text };
    if (state.open) frame.conversation_id = state.open;
    if (n > 1) frame.n = n;
    try {
      const started = await begin(frame);
      P.composer.saveDraft(pending.conversation_id ?? "new", "");
      pending.conversation_id = started.conversation_id;
      if (state.pending !== pending) return;
      state.generation = started.generation_id;
      if (state.open === null) open(started.conversation_id);
      P.composer.refresh();
    } catch (error) {
      pending.error = error;
      P.say(error.message);
      if (state.pending === pending) draw();
      else P.composer.giveBack(text, pending.conversation_id);
    }
  }

  // A refused message stays visible with Retry; "Edit" puts its words back under the cursor.
  function takeBack() {
    const { text, conversation_id } = state.pending;
    state.pending = null;
    P.composer.giveBack(text, conversation_id);
    draw();
    P.composer.focus();
  }

  function retry() {
    const { text, n } = state.pending;
    const reason = socket.state.phase === "ready" ? null : canSend();
    if (reason) P.say(reason);
    else submit(text, n);
  }

  async function startFrom(frame) {
    const reason = canSend();
    if (reason) {
      P.say(reason);
      return false;
    }
    try {
      const started = await begin(frame);
      state.generation = started.generation_id;
      P.composer.refresh();
      return true;
    } catch (error) {
      P.say(error.message);
      P.toast(error.message, "Retry", () => startFrom(frame));
      return false;
    }
  }

  function regenerate(message, n) {
    const frame = { type: "regenerate", message_id: message.id };
    if (n > 1) frame.n = n;
    sticks = true;
    return startFrom(frame);
  }

  const edit = (message, content) => startFrom({ type: "edit", message_id: message.id, content });

  // Moves to another version; the focus goes along to the same button of what takes the place.
  async function select(messageId, from) {
    const action = from?.node.contains(document.activeElement) ? (document.activeElement.dataset.action ?? "") : null;
    const place = from ? [...log.children].indexOf(from.node) : -1;
    if (isBusy() && !candidates) {
      P.say("Wait for the answer, or stop it with Esc.");
      return;
    }
    try {
      await socket.request({ type: "select", message_id: messageId });
    } catch (error) {
      P.say(error.message);
      return;
    }
    if (action === null || place < 0) return;
    const restore = () => {
      const node = log.querySelector(`[data-id="${messageId}"]`);
      (action ? node?.querySelector(`[data-action="${action}"]`) : node)?.focus({ preventScroll: true });
    };
    requestAnimationFrame(() => requestAnimationFrame(restore));
  }

  function stop(index) {
    if (!isBusy()) return;
    const frame = { type: "stop", generation_id: state.generation };
    if (index !== undefined) frame.index = index;
    else state.stopping = true;
    socket.send(frame);
    P.say("Stopping…");
  }

  // --- frames ------------------------------------------------------------------------------------

  function onConversation(frame) {
    if (frame.conversation.id !== state.open) return;
    state.view = frame;
    state.generation = frame.generation_id;
    const { pending } = state;
    const last = lastUserMessage();
    const arrived = pending && last?.content === pending.text && last.id !== pending.after;
    if (arrived) {
      state.pending = null;
      P.composer.saveDraft(state.open, "");
    }
    document.title = `${frame.conversation.title || "New chat"} · Pageturn`;
    draw();
  }

  const viewOf = (generationId, index) => {
    const message = messagesShown().find((m) => m.generation_id === generationId && m.candidate_index === index);
    if (!message) return null;
    return candidates?.card(index)?.message.id === message.id ? candidates.card(index) : views.get(message.id);
  };

  const messagesShown = () => (state.view ? [...state.view.candidates, ...state.view.messages] : []);

  function showLive(generationId, index) {
    const generation = live.get(generationId);
    viewOf(generationId, index)?.setLive(live.part(generation, index), generation.progress);
  }

  function onSnapshot(frame) {
    for (const index of live.snapshot(frame).parts.keys()) showLive(frame.generation_id, index);
    follow();
  }

  function onRender(frame) {
    live.render(frame);
    showLive(frame.generation_id, frame.index);
    follow();
  }

  function onProgress(frame) {
    const generation = live.get(frame.generation_id);
    generation.progress = frame;
    for (const message of messagesShown()) {
      if (message.generation_id === frame.generation_id) showLive(frame.generation_id, message.candidate_index);
    }
  }

  function onCandidate(frame) {
    live.candidate(frame);
    const message = messagesShown().find((m) => m.generation_id === frame.generation_id && m.candidate_index === frame.index);
    if (frame.finish_reason === "abort") P.say(["Stopped", receipt(frame)].filter(Boolean).join(" · "));
    if (message) endMessage(message, frame);
  }

  // The receipt of a stop: of the whole generation so far, since its candidates end one by one.
  function receipt(frame) {
    const ended = [...live.get(frame.generation_id).parts.values()].map((part) => part.ended);
    const kvs = ended.filter((end) => end?.finish_reason === "abort" && end.kv).map((end) => end.kv);
    if (!kvs.length) return "";
    const sum = (key) => kvs.reduce((total, kv) => total + kv[key], 0);
    return P.receiptLine({ blocks_released: sum("blocks_released"), release_ms: sum("release_ms") });
  }

  function endMessage(message, frame) {
    const status = { abort: "stopped", error: "error" }[frame.finish_reason] || "done";
    const { html } = live.part(live.get(frame.generation_id), frame.index);
    const { finish_reason, usage, timings, kv, error } = frame;
    for (const same of messagesShown().filter((m) => m.id === message.id)) {
      Object.assign(same, { status, finish_reason, usage, timings, kv, error, html });
    }
    draw();
  }

  function onFinished(frame) {
    if (frame.generation_id !== state.generation) return;
    state.generation = null;
    const stopped = state.stopping;
    state.stopping = false;
    live.forget(frame.generation_id);
    draw();
    if (!stopped && !document.querySelector(".pt-status")?.textContent) P.say("The answer is complete.");
  }

  function onError(frame) {
    P.say(frame.message);
    if (frame.code === "engine_dead") showBanner(`The engine has stopped: ${frame.message}`);
  }

  // --- drawing -----------------------------------------------------------------------------------

  const actions = { select, edit, regenerate, isBusy };

  function messageView(message) {
    if (!views.has(message.id)) views.set(message.id, new P.MessageView(message, actions));
    const view = views.get(message.id);
    view.update(message);
    if (message.status === "generating") {
      const generation = live.get(message.generation_id);
      const part = live.part(generation, message.candidate_index);
      if (part.html || part.tail || view.prose.isEmpty) view.setLive(part, generation.progress);
    }
    return view.node;
  }

  function candidatesNode(view) {
    candidates ??= new P.CandidatesView({ select: (id) => select(id), stop });
    candidates.update(view.candidates, view.conversation.head_id);
    for (const message of view.candidates.filter((m) => m.status === "generating")) {
      showLive(message.generation_id, message.candidate_index);
    }
    return candidates.node;
  }

  function pendingNode(pending) {
    const node = h("article", { class: "pt-message pt-user pt-pending", "aria-label": "You" });
    const prose = h("div", { class: "pt-prose" }, h("p", { class: "pt-plain" }, pending.text));
    node.append(prose);
    if (!pending.error) return node;
    const buttons = [P.button("again", "Retry", retry), P.button("edit", "Edit", takeBack)];
    node.append(h("div", { class: "pt-note pt-error", role: "alert" }, h("span", {}, pending.error.message), ...buttons));
    return node;
  }

  function emptyNode() {
    if (state.open) return h("div", { class: "pt-empty" }, h("p", {}, "Opening…"));
    const tries = EXAMPLES.map((text) => h("button", { type: "button", class: "pt-example", onclick: () => (P.composer.setText(text), P.composer.focus()) }, text));
    return h("div", { class: "pt-empty" }, h("h2", {}, "What shall we write?"), h("p", {}, "A local model answers. Nothing you type leaves this server."), h("div", { class: "pt-examples" }, ...tries));
  }

  function earlierNode(hidden) {
    return P.button("up", `Show ${P.plural(hidden, "earlier message")}`, () => {
      const fromEnd = scroll.scrollHeight - scroll.scrollTop;
      state.shown += FIRST_SHOWN;
      draw();
      scroll.scrollTop = scroll.scrollHeight - fromEnd;
    }, { class: "pt-button pt-earlier" });
  }

  function wantedNodes() {
    const { view, pending } = state;
    const nodes = [];
    if (view) {
      const openIds = new Set(view.candidates.map((message) => message.id));
      const path = view.messages.filter((message) => !openIds.has(message.id));
      const hidden = Math.max(path.length - state.shown, 0);
      if (hidden) nodes.push(earlierNode(hidden));
      nodes.push(...path.slice(hidden).map(messageView));
      if (view.candidates.length) nodes.push(candidatesNode(view));
      else candidates = null;
    }
    if (pending) nodes.push(pendingNode(pending));
    return nodes.length ? nodes : [emptyNode()];
  }

  function draw() {
    if (!log) return;
    if (!state.view) (views.clear(), (candidates = null));
    const nodes = wantedNodes();
    const wanted = new Set(nodes);
    for (const node of [...log.children]) if (!wanted.has(node)) node.remove();
    nodes.forEach((node, index) => {
      if (log.children[index] !== node) log.insertBefore(node, log.children[index] ?? null);
    });
    for (const [id, view] of views) if (!wanted.has(view.node)) views.delete(id);
    if (!state.open) document.title = "Pageturn";
    root.classList.toggle("pt-is-empty", !state.view && !state.pending && !state.open);
    watchRequests(Boolean(candidates) && isBusy());
    P.composer.refresh();
    follow();
  }

  // While candidates stream, the engine's own numbers are shown beside them.
  function watchRequests(wanted) {
    if (wanted === watchingRequests) return;
    watchingRequests = wanted;
    if (wanted) socket.subscribe("requests");
    else socket.unsubscribe("requests");
  }

  function onRequests(frame) {
    if (!watchingRequests || !candidates || frame.items.length !== 1) return;
    candidates.setLive(frame.items[0]);
  }

  // --- scrolling: the end is followed only by who is there already ---------------------------------

  const atEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;

  function follow() {
    if (!scroll) return;
    if (sticks) scroll.scrollTop = scroll.scrollHeight;
    jump.hidden = sticks || atEnd();
  }

  function onScroll() {
    sticks = atEnd();
    jump.hidden = sticks;
  }

  function showBanner(text, fraction) {
    if (!banner) return;
    banner.hidden = !text;
    if (!text) return;
    P.setText(banner.querySelector("span"), text);
    const bar = banner.querySelector("progress");
    bar.hidden = fraction === undefined;
    bar.value = fraction ?? 0;
  }

  function onState({ phase, stage, fraction }) {
    if (phase === "lost") showBanner("The connection to the server was lost. Reconnecting…");
    else if (phase === "loading") showBanner(`The model is loading${stage ? `: ${stage}` : ""}. You can read your conversations meanwhile.`, fraction);
    else showBanner("");
    P.composer.refresh();
  }

  function onKey(event) {
    if (event.defaultPrevented || !root?.offsetParent) return;
    if (event.key === "Escape" && isBusy() && !event.target.closest?.(".pt-editor")) stop();
    const typing = event.target.closest?.("input, textarea, [contenteditable]");
    if (candidates && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && /^[1-9]$/.test(event.key)) candidates.pick(Number(event.key) - 1);
  }

  function mount(element) {
    root = element.querySelector(".pt-chat");
    [log, scroll, jump, banner] = [".pt-log", ".pt-scroll", ".pt-jump", ".pt-banner"].map((name) => root.querySelector(name));
    scroll.addEventListener("scroll", onScroll, { passive: true });
    new ResizeObserver(follow).observe(scroll);
    jump.append(P.icon("down"), h("span", {}, "Latest"));
    jump.addEventListener("click", () => ((sticks = true), follow()));
    P.composer.mount(root.querySelector(".pt-composer"), { submit, stop, canSend, isBusy });
    onState(socket.state);
    draw();
  }

  const frames = { conversation: onConversation, snapshot: onSnapshot, render: onRender, progress: onProgress, candidate: onCandidate, finished: onFinished, requests: onRequests, error: onError, state: onState };
  for (const [type, listener] of Object.entries(frames)) socket.on(type, listener);
  socket.on("conversation_removed", (frame) => frame.conversation_id === state.open && open(null));
  window.addEventListener("popstate", () => open(idInAddress()));
  document.addEventListener("keydown", onKey);

  P.showChat = () => document.querySelector('.pt-tabs button[role="tab"]')?.click();
  P.chat = { mount, open, openId: () => state.open, conversation: () => state.view?.conversation ?? null };
  open(idInAddress());
})(window.Pageturn);
