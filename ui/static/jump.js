// Goes to a message, wherever it is in the tree: shows its branch first, then brings it into sight, with words that were
// searched for marked.
"use strict";

(function (P) {
  // {conversation, message, words, asked}: where to go once it is there.
  let wanted = null;

  // What cannot be done now is not done later, when nobody expects it any more.
  async function go(view) {
    if (!wanted || view?.conversation.id !== wanted.conversation) return;
    const goal = wanted;
    const node = P.chat.reveal(goal.message);
    if (node) {
      wanted = null;
      P.found.mark(node, goal.words);
    } else if (!goal.asked) {
      goal.asked = true;
      if (await P.chat.select(goal.message)) offerBack(goal, view.conversation);
      else if (wanted === goal) wanted = null;
    }
  }

  // Who asks for words, and not for a branch, is told when another one is shown for them.
  function offerBack({ words }, { id, title, head_id: head }) {
    if (!words.length || !head) return;
    P.toast(`“${title}” now shows another branch, where this was found`, "Back", () => {
      P.chat.open(id);
      to(id, head);
    });
  }

  function to(conversation, message, words = []) {
    wanted = { conversation, message, words, asked: false };
    go(P.chat.view());
  }

  P.socket.on("conversation", go);
  document.addEventListener("pageturn:open", () => wanted?.conversation !== P.chat.openId() && (wanted = null));
  P.jump = { to };
})(window.Pageturn);
