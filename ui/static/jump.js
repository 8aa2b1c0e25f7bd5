// Goes to a message, wherever it is in the tree: shows its branch first, then brings it into sight.
"use strict";

(function (P) {
  // {conversation, message, asked}: where to go once it is there.
  let wanted = null;

  async function go(view) {
    if (!wanted || view?.conversation.id !== wanted.conversation) return;
    const { message } = wanted;
    if (P.chat.reveal(message)) {
      wanted = null;
    } else if (!wanted.asked) {
      wanted.asked = true;
      await P.chat.select(message);
    }
  }

  function to(conversation, message) {
    wanted = { conversation, message, asked: false };
    go(P.chat.view());
  }

  P.socket.on("conversation", go);
  document.addEventListener("pageturn:open", () => wanted?.conversation !== P.chat.openId() && (wanted = null));
  P.jump = { to };
})(window.Pageturn);
