// One WebSocket for the whole page. It reconnects by itself and subscribes again to what was subscribed.
"use strict";

(function (P) {
  const RETRY_MS = [300, 1000, 2000, 4000, 8000];
  const PING_EVERY_MS = 20000;
  const SILENCE_MS = 50000;

  const listeners = new Map();
  const topics = new Map();
  const waiting = new Map();
  let socket = null;
  let attempts = 0;
  let requests = 0;
  let heardAt = 0;
  let retryTimer = 0;

  const state = { phase: "connecting", stage: "", fraction: null, model: null, max_model_len: null };

  function on(type, listener) {
    if (!listeners.has(type)) listeners.set(type, []);
    listeners.get(type).push(listener);
  }

  function emit(type, value) {
    for (const listener of listeners.get(type) || []) listener(value);
  }

  function setState(changes) {
    Object.assign(state, changes);
    emit("state", state);
  }

  const isOpen = () => socket !== null && socket.readyState === WebSocket.OPEN;

  function send(frame) {
    if (isOpen()) socket.send(JSON.stringify(frame));
  }

  // Resolves with the frame that echoes the request; rejects with {code, message} of an error or a lost connection.
  function request(frame) {
    return new Promise((resolve, reject) => {
      if (!isOpen()) {
        reject({ code: "disconnected", message: "No connection to the server. Your text is kept." });
        return;
      }
      const request_id = `p${++requests}`;
      waiting.set(request_id, { resolve, reject });
      send({ ...frame, request_id });
    });
  }

  const topicKey = (topic, id) => (id === undefined ? topic : `${topic} ${id}`);
  const topicFrame = (type, topic, id) => (id === undefined ? { type, topic } : { type, topic, id });

  function join(entry) {
    request(topicFrame("subscribe", entry.topic, entry.id)).catch((error) => {
      if (error.code !== "disconnected") entry.onerror?.(error);
    });
  }

  function subscribe(topic, id, onerror) {
    const key = topicKey(topic, id);
    const entry = topics.get(key);
    if (entry) {
      entry.users += 1;
      return;
    }
    topics.set(key, { topic, id, onerror, users: 1 });
    if (isOpen()) join(topics.get(key));
  }

  // A topic that two parts of the page watch is left by the last of them.
  function unsubscribe(topic, id) {
    const key = topicKey(topic, id);
    const entry = topics.get(key);
    if (!entry || --entry.users > 0) return;
    topics.delete(key);
    send(topicFrame("unsubscribe", topic, id));
  }

  function answer(frame) {
    const entry = waiting.get(frame.request_id);
    if (!entry) return false;
    waiting.delete(frame.request_id);
    if (frame.type === "error") entry.reject(frame);
    else entry.resolve(frame);
    return true;
  }

  function receive(event) {
    heardAt = Date.now();
    if (typeof event.data !== "string") {
      emit("blocks", new Uint16Array(event.data));
      return;
    }
    const frame = JSON.parse(event.data);
    if (frame.type === "loading") setState({ phase: "loading", stage: frame.stage, fraction: frame.fraction });
    if (frame.type === "ready") setState({ phase: "ready", model: frame.model, max_model_len: frame.max_model_len });
    const answered = frame.request_id !== undefined && answer(frame);
    if (!(answered && frame.type === "error")) emit(frame.type, frame);
  }

  function opened() {
    attempts = 0;
    heardAt = Date.now();
    for (const entry of topics.values()) join(entry);
  }

  function closed(event) {
    socket = null;
    for (const entry of waiting.values()) entry.reject({ code: "disconnected", message: "The connection was lost. Your text is kept." });
    waiting.clear();
    const delay = RETRY_MS[Math.min(attempts++, RETRY_MS.length - 1)];
    setState({ phase: "lost", stage: event.reason });
    retryTimer = setTimeout(connect, delay * (0.8 + 0.4 * Math.random()));
  }

  function connect() {
    clearTimeout(retryTimer);
    if (socket) return;
    const url = new URL("ws/chat?format=html", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    socket.onopen = opened;
    socket.onmessage = receive;
    socket.onclose = closed;
  }

  // A peer that is gone without a close is found by its silence.
  function watch() {
    if (!isOpen()) return;
    if (Date.now() - heardAt > SILENCE_MS) socket.close();
    else if (Date.now() - heardAt > PING_EVERY_MS) send({ type: "ping" });
  }

  setInterval(watch, 5000);
  window.addEventListener("online", connect);

  P.socket = { on, send, request, subscribe, unsubscribe, connect, state };
})(window.Pageturn);
