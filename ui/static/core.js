// Small helpers that every other script uses: elements, icons, numbers, storage, what is said under the composer.
"use strict";
window.Pageturn = {};

(function (P) {
  const PATHS = {
    plus: "M12 5v14M5 12h14",
    search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14ZM20 20l-4-4",
    edit: "M4 20h4L19 9l-4-4L4 16v4ZM13.5 6.5l4 4",
    trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
    copy: "M9 9h10v11H9zM5 15V4h10",
    check: "M5 12.5 10 17 19 7",
    again: "M20 11a8 8 0 1 0-2.3 6M20 5v6h-6",
    three: "M4 5h4v14H4zM10 5h4v14h-4zM16 5h4v14h-4z",
    left: "M14.5 6 9 12l5.5 6",
    right: "M9.5 6 15 12l-5.5 6",
    goon: "M5 5v14l7-7-7-7ZM13 5v14l7-7-7-7Z",
    down: "M12 5v14M6 13l6 6 6-6",
    up: "M12 19V5M6 11l6-6 6 6",
    stop: "M7 7h10v10H7z",
    more: "M5 12h.6M11.7 12h.6M18.4 12h.6",
    save: "M12 4v11M7 10l5 5 5-5M5 20h14",
    open: "M12 15V4M7 9l5-5 5 5M5 20h14",
    branch: "M7 8v8M17 8c0 5-10 3-10 8M7 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4M17 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4M7 16a2 2 0 1 0 0 4 2 2 0 0 0 0-4",
    close: "M6 6l12 12M18 6 6 18",
    unfold: "M6 10l6 6 6-6",
    gear: "M4 7h9M19 7h1M4 17h1M11 17h9M13 7a3 3 0 1 0 6 0 3 3 0 0 0-6 0ZM5 17a3 3 0 1 0 6 0 3 3 0 0 0-6 0Z",
    compare: "M4 6h16M4 12h6M4 18h6M14 12h6M14 18h4",
    keys: "M3 7h18v10H3zM7 11h.01M11 11h.01M15 11h.01M8 14h8",
    info: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18ZM12 11v5.5M12 7.5h.01",
    pin: "M9 4h6l-1 6 3 3H7l3-3-1-6ZM12 13v7",
  };
  const SVG = "http://www.w3.org/2000/svg";
  // Whether the status line tells why something cannot be done now.
  let obstacle = false;

  P.icon = function (name) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("class", "pt-icon");
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", PATHS[name]);
    svg.append(path);
    return svg;
  };

  // h("button", {class: "x", onclick: f, disabled: true, "aria-label": "y"}, child, "text")
  P.h = function (tag, props, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(props || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  };

  P.iconButton = function (name, label, onclick, props) {
    return P.h("button", { type: "button", class: "pt-icon-button", "aria-label": label, title: label, onclick, ...props }, P.icon(name));
  };

  P.button = function (name, label, onclick, props) {
    return P.h("button", { type: "button", class: "pt-button", onclick, ...props }, name ? P.icon(name) : null, P.h("span", {}, label));
  };

  // Text that is already there is not written again, so that nothing is announced or repainted without need.
  P.setText = function (node, text) {
    if (node.textContent !== text) node.textContent = text;
  };

  // A line of Markdown to be read at a glance: without the marks that stand out most.
  P.unmarked = (text) => text.replace(/\*\*|`/g, "").replace(/^#{1,6} /, "");

  P.number = (value) => Math.round(value).toLocaleString("en-US");
  P.plural = (count, word) => `${P.number(count)} ${word}${count === 1 ? "" : "s"}`;
  P.rate = (value) => (value < 100 ? value.toFixed(1) : P.number(value));
  // A share that is not nothing does not look like nothing.
  P.percent = function (part, whole) {
    if (!(whole > 0)) return "–";
    const share = (100 * part) / whole;
    return share > 0 && share < 0.05 ? "< 0.1 %" : `${share.toFixed(share && share < 10 ? 1 : 0)} %`;
  };
  P.seconds = (s) => (s < 60 ? `${s.toFixed(1)} s` : `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`);
  P.milliseconds = (ms) => (ms < 1000 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : P.seconds(ms / 1000));
  P.bytes = function (count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const power = count > 0 ? Math.min(Math.floor(Math.log2(count) / 10), units.length - 1) : 0;
    return `${(count / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
  };

  // Preferences and drafts. A browser that forbids storage costs the memory, not the page.
  P.store = {
    get(key, fallback) {
      try {
        const value = localStorage.getItem(`pageturn.${key}`);
        return value === null ? fallback : JSON.parse(value);
      } catch {
        return fallback;
      }
    },
    set(key, value) {
      try {
        if (value === null) localStorage.removeItem(`pageturn.${key}`);
        else localStorage.setItem(`pageturn.${key}`, JSON.stringify(value));
      } catch (error) {
        console.warn("storage refused:", error.name);
      }
    },
  };

  P.copyText = async function (text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = P.h("textarea", { class: "pt-hidden-text", "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.classList.add("pt-done");
    P.say("Copied");
    setTimeout(() => button.classList.remove("pt-done"), 1200);
  };

  // `hasTurns`: whether what was refused stands behind turns that a prompt could do without.
  P.errorText = function ({ code, message }, hasTurns) {
    if (code !== "context_length_exceeded") return message.charAt(0).toUpperCase() + message.slice(1);
    return hasTurns ? `This conversation is too long for the model: ${message}. A new chat starts fresh.` : `This message is too long for the model: ${message}.`;
  };

  // The one polite line for screen readers; also what sighted people read under the composer.
  P.say = function (text) {
    obstacle = false;
    for (const line of document.querySelectorAll(".pt-status")) P.setText(line, text);
  };

  // Why something cannot be done now: said until `sayObstacle` hears of another reason, or of none.
  P.sayObstacle = function (text) {
    P.say(text ?? "");
    obstacle = Boolean(text);
  };
  P.saysObstacle = () => obstacle;

  // JSON over HTTP, for what has no frame on the socket; `body` is a value or a file of JSON. Errors carry the server's
  // message, and `param`, the field that it complains about.
  P.api = async function (method, path, body) {
    const response = await fetch(`api/${path}`, {
      method,
      headers: body ? { "Content-Type": "application/json" } : {},
      body: body && !(body instanceof Blob) ? JSON.stringify(body) : body,
    });
    const answer = response.status === 204 ? null : await response.json().catch(() => null);
    if (!response.ok) throw Object.assign(new Error(answer?.error?.message || `The server answered ${response.status}`), { param: answer?.error?.param });
    return answer;
  };
})(window.Pageturn);
