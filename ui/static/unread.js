// Which conversations have an answer that ended while nobody looked; kept in this browser.
"use strict";

(function (P) {
  const LIMIT = 500;
  const unread = new Set(P.store.get("unread", []));
  const running = new Set(P.store.get("running", []));
  let isOnShow = () => false;

  const save = () => P.store.set("unread", [...unread].slice(-LIMIT));

  // Every row that the server tells of passes here.
  function note(item) {
    const ended = running.has(item.id) && !item.running;
    if (item.running === running.has(item.id)) return;
    if (item.running) running.add(item.id);
    else running.delete(item.id);
    P.store.set("running", [...running].slice(-LIMIT));
    if (!ended || isOnShow(item.id)) return;
    unread.add(item.id);
    save();
  }

  // Returns whether that was news.
  function read(id) {
    const news = unread.delete(id);
    if (news) save();
    return news;
  }

  P.unread = { note, read, has: (id) => unread.has(id), watch: (test) => (isOnShow = test) };
})(window.Pageturn);
