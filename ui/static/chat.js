// The chat: keeps the open conversation, turns frames into what the transcript draws, and actions into frames.
"use strict";

(function (P) {
  const { socket, live } = P;
  const PASSING = ["loading", "disconnected"];
  const WAIT = "Wait for the answer, or stop it with Esc.";
  // `open`: the conversation's id; `view`: its last `conversation` frame; `generation`: the running one's id;
  // `pending`: a message on its way, {text, wish, parent_id, waits, conversation_id, after, error}.
  const state = { open: null, view: null, generation: null, pending: null };
  let transcript = null;
  let root;
  let watchingRequests = false;

  const isBusy = () => state.generation !== null;
  const canStop = () => isBusy() && socket.state.phase === "ready";
  const messages = () => (state.view ? [...state.view.candidates, ...state.view.messages] : []);
  const lastUserMessage = () => state.view?.messages.findLast((message) => message.role === "user");
  const idInAddress = () => location.hash.slice(1) || null;

  // Why nothing can be sent now, or null.
  function refusal() {
    if (state.pending?.waits) return "Your last message waits to be sent.";
    if (socket.state.phase === "loading") return "The model is still loading.";
    if (socket.state.phase !== "ready") return "No connection to the server. Your text is kept.";
    if (state.pending && !state.pending.error) return "Your last message is still on its way.";
    return isBusy() ? WAIT : null;
  }

  // The same for a new message, which may wait for the model or the connection.
  function sendRefusal() {
    const waits = socket.state.phase !== "ready" && !state.pending;
    return waits ? null : refusal();
  }

  // A failure for want of a ready server is over when there is one.
  function sayFailure(error) {
    if (PASSING.includes(error.code)) P.sayObstacle(error.message);
    else P.say(error.message);
  }

  function draw() {
    transcript?.draw();
    watchRequests(Boolean(transcript?.candidates) && isBusy());
    P.composer.refresh();
    P.fromHere.refresh();
  }

  // --- opening a conversation ------------------------------------------------------------------

  function open(id) {
    if (id === state.open) return;
    if (state.open) socket.unsubscribe("conversation", state.open);
    Object.assign(state, { open: id, view: null, generation: null });
    if (state.pending?.conversation_id !== id) sending.leave();
    if (idInAddress() !== id) history.pushState(null, "", id ? `#${id}` : location.pathname + location.search);
    if (id) socket.subscribe("conversation", id, (error) => missing(id, error));
    else document.title = "Pageturn";
    transcript?.reset();
    P.composer.open(id);
    P.say("");
    draw();
    document.dispatchEvent(new Event("pageturn:open"));
  }

  function missing(id, error) {
    if (state.open !== id || error.code !== "not_found") return;
    open(null);
    P.toast("That conversation is not there any more.");
  }

  // --- actions -----------------------------------------------------------------------------------

  // Sends a frame that starts a generation; resolves with `started`. `wish`: {n, temperatures?}.
  async function begin(frame, { n, temperatures }) {
    const sampling = { ...P.settings.sampling(), ...(temperatures ? { temperatures } : {}) };
    if (Object.keys(sampling).length) frame.sampling = sampling;
    if (n > 1 || P.settings.count() > 1) frame.n = n;
    P.say("");
    const started = await socket.request(frame).catch((error) => {
      showIfDead(error);
      throw error;
    });
    if (state.open === null || state.open === started.conversation_id) state.generation = started.generation_id;
    return started;
  }

  // The conversation that a first message has made.
  function openStarted(started) {
    open(started.conversation_id);
    state.generation = started.generation_id;
  }

  // For `regenerate`, `continue` and `edit`; resolves with whether it has begun.
  async function startFrom(frame, wish) {
    const reason = refusal();
    if (reason) {
      P.sayObstacle(reason);
      return false;
    }
    try {
      await begin(frame, wish);
    } catch (error) {
      const again = () => startFrom(frame, wish);
      sayFailure(error);
      if (isTooLong(error)) P.toastHere(P.errorText(error, true), "Leave out the oldest turns", () => P.settings.dropOldest(again));
      else P.toastHere(error.message, "Retry", again);
      return false;
    }
    transcript.stick();
    P.composer.refresh();
    return true;
  }

  // Whether leaving turns out of the prompt may help.
  const isTooLong = ({ code }) => code === "context_length_exceeded" && state.view?.conversation.when_full === "stop" && state.view.messages.length > 0;

  const regenerate = (message, wish) => startFrom({ type: "regenerate", message_id: message.id }, wish);

  // `place`: {at_token, n}; without a token the whole answer is kept.
  const goOn = (message, { n = 1, ...place }) => startFrom({ type: "continue", message_id: message.id, ...place }, { n });

  const edit = (message, content) => startFrom({ type: "edit", message_id: message.id, content }, P.composer.wish());

  // Also while an answer is written, which goes on wherever one looks. Resolves with whether it was done.
  async function select(messageId, from) {
    transcript.keepFocus(messageId, from);
    P.say("");
    try {
      await socket.request({ type: "select", message_id: messageId });
      return true;
    } catch (error) {
      sayFailure(error);
      return false;
    }
  }

  // Picking a candidate that is still being written lets it go on; the others have no reader any more.
  function pick(message) {
    for (const other of state.view.candidates) {
      if (other.id !== message.id && other.status === "generating") stop(other.candidate_index);
    }
    select(message.id);
  }

  function stop(index) {
    if (!canStop()) return;
    const frame = { type: "stop", generation_id: state.generation };
    socket.send(index === undefined ? frame : { ...frame, index });
    P.say("Stopping…");
  }

  // --- frames ------------------------------------------------------------------------------------

  const settingsOf = (view) => view && JSON.stringify(["sampling", "system_prompt", "when_full"].map((key) => view.conversation[key]));

  function onConversation(frame) {
    if (frame.conversation.id !== state.open) return;
    const before = settingsOf(state.view);
    state.view = frame;
    state.generation = frame.generation_id;
    if (before !== settingsOf(frame)) document.dispatchEvent(new Event("pageturn:settings"));
    sending.settle(lastUserMessage());
    sending.deliverWaiting();
    document.title = `${frame.conversation.title || "New chat"} · Pageturn`;
    draw();
  }

  function showLive(generationId, index) {
    const message = messages().find((m) => m.generation_id === generationId && m.candidate_index === index);
    const generation = live.get(generationId);
    if (message) transcript?.viewOf(message)?.setLive(live.part(generation, index), generation.progress);
  }

  function onSnapshot(frame) {
    for (const index of live.snapshot(frame).parts.keys()) showLive(frame.generation_id, index);
    transcript?.follow();
  }

  function onRender(frame) {
    live.render(frame);
    showLive(frame.generation_id, frame.index);
    transcript?.follow();
  }

  function onProgress(frame) {
    live.get(frame.generation_id).progress = frame;
    for (const message of messages()) {
      if (message.generation_id === frame.generation_id) showLive(frame.generation_id, message.candidate_index);
    }
  }

  function onCandidate(frame) {
    live.candidate(frame);
    if (frame.status === "stopped") P.say(live.receipt(frame.generation_id) || "Stopped");
    if (frame.status === "interrupted") P.say("Interrupted: the server was stopped.");
    const { html, text: content } = live.part(live.get(frame.generation_id), frame.index);
    const { status, finish_reason, usage, timings, kv, error } = frame;
    for (const message of messages()) {
      const same = message.generation_id === frame.generation_id && message.candidate_index === frame.index;
      if (same) Object.assign(message, { status, finish_reason, usage, timings, kv, error, html, content });
    }
    draw();
  }

  function onFinished(frame) {
    const reasons = live.reasons(frame.generation_id);
    live.forget(frame.generation_id);
    // The conversation may have told before that nothing is written in it any more.
    const isOver = state.generation === null && messages().some((message) => message.generation_id === frame.generation_id);
    if (frame.generation_id !== state.generation && !isOver) return;
    state.generation = null;
    draw();
    sending.deliverWaiting();
    if (!reasons.includes("abort")) P.say(live.endLine(reasons));
  }

  function onError(frame) {
    sayFailure(frame);
    showIfDead(frame);
  }

  function showIfDead({ code }) {
    if (code === "engine_dead") P.banner.show("The engine has stopped. You can read your conversations; the server must be started again to answer.");
  }

  // While candidates stream, what the engine holds for them is shown beside them.
  function watchRequests(wanted) {
    if (wanted === watchingRequests) return;
    watchingRequests = wanted;
    if (wanted) socket.subscribe("requests");
    else socket.unsubscribe("requests");
  }

  function onRequests(frame) {
    const own = frame.items.find((item) => item.generation_id === state.generation);
    if (own && watchingRequests) transcript?.candidates?.sharing.setLive(own);
  }

  // --- keys, mounting -----------------------------------------------------------------------------

  function onState(socketState) {
    P.banner.showState(socketState);
    sending.deliverWaiting();
    if (state.pending?.waits) draw();
    P.composer.refresh();
  }

  // Each returns whether the key means something. A letter never does in a field, where a message may begin with it.
  function onPlainKey(key) {
    if (key === "?") P.shortcuts.open();
    else if (key === "/") P.composer.focus();
    else return false;
    return true;
  }

  function onLetter(key) {
    if (key === "n") P.conversations.choose(null);
    else return key === "c" && Boolean(transcript.candidates?.compare.press());
    return true;
  }

  // In the list beside it the key is the list's.
  function onEscape(target) {
    if (isBusy()) stop();
    else if (!target.closest?.("#pt-sidebar")) transcript.closeFacts();
  }

  function onKey(event) {
    if (event.defaultPrevented || !root?.offsetParent || P.isDialogOpen()) return;
    if (event.key === "Escape") onEscape(event.target);
    const inField = Boolean(event.target.closest?.("input, textarea, [contenteditable]"));
    const typing = inField && !P.composer.isEmptyBox(event.target);
    const plain = !typing && !event.ctrlKey && !event.metaKey && !event.altKey && !event.isComposing;
    if (!plain) return;
    const done = /^[1-9]$/.test(event.key) ? transcript.candidates?.pick(Number(event.key), inField) : onPlainKey(event.key) || (!inField && onLetter(event.key));
    if (done) event.preventDefault();
  }

  // The first thing that Tab reaches, before the list and the tabs.
  function skipLink() {
    const skip = (event) => {
      event.preventDefault();
      P.showChat();
      P.composer.focus();
    };
    return P.h("a", { class: "pt-skip", href: "#pt-message", onclick: skip }, "Skip to the message box");
  }

  function mount(element) {
    document.body.prepend(skipLink());
    root = element.querySelector(".pt-chat");
    P.banner.mount(root.querySelector(".pt-banner"));
    transcript = new P.Transcript(root, state, { select, pick, stop, edit, regenerate, goOn, retry, takeBack: () => sending.edit(), useSeed: P.settings.useSeed, dropOldest: () => P.settings.dropOldest(retry), isTooLong });
    P.fromHere.mount(root, { goOn, refusal, messageOf: (id) => messages().find((message) => message.id === id) });
    P.composer.mount(root.querySelector(".pt-composer"), { submit: (text, wish) => sending.submit(text, wish), stop, refusal, sendRefusal, canStop, view: () => state.view });
    P.tree.mount(root);
    onState(socket.state);
    draw();
  }

  const sending = new P.Sending(state, {
    begin,
    draw,
    refusal,
    open: openStarted,
    stick: () => transcript.stick(),
    parentId: () => transcript.candidates?.focusId,
    lastUserId: () => lastUserMessage()?.id,
  });
  const retry = () => sending.retry();
  const frames = {
    conversation: onConversation,
    snapshot: onSnapshot,
    render: onRender,
    progress: onProgress,
    candidate: onCandidate,
    finished: onFinished,
    requests: onRequests,
    error: onError,
    state: onState,
  };
  for (const [type, listener] of Object.entries(frames)) socket.on(type, listener);
  socket.on("conversation_removed", (frame) => frame.conversation_id === state.open && open(null));
  window.addEventListener("popstate", () => open(idInAddress()));
  document.addEventListener("keydown", onKey);
  window.addEventListener("pagehide", () => sending.keep());

  P.showChat = () => document.querySelector('.pt-tabs button[role="tab"]')?.click();
  P.chat = {
    mount,
    open,
    select,
    openId: () => state.open,
    view: () => state.view,
    conversation: () => state.view?.conversation ?? null,
    reveal: (messageId) => transcript?.reveal(messageId) ?? null,
  };
  open(idInAddress());
})(window.Pageturn);
