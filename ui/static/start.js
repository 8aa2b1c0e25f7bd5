// Last of the scripts: opens the connection and lets the islands mount that wait for it.
"use strict";

(function (P) {
  let go;
  window.pageturnReady ??= Object.assign(new Promise((done) => (go = done)), { go: (page) => go(page) });
  P.socket.connect();
  window.pageturnReady.go(P);
})(window.Pageturn);
