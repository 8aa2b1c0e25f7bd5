// A message on its way: it waits for the model or the connection, is delivered, or stays in sight with what kept it back.
"use strict";

(function (P) {
  P.Sending = class {
    // `state` is the chat's own. `chat`: begin(frame, wish), draw(), stick(), parentId(), lastUserId(), open(started), refusal().
    constructor(state, chat) {
      Object.assign(this, { state, chat });
    }

    // While nothing can be delivered a message waits.
    submit(text, wish) {
      const waits = P.socket.state.phase !== "ready";
      const { open: conversation_id } = this.state;
      const pending = { text, wish, parent_id: this.chat.parentId(), waits, conversation_id, after: this.chat.lastUserId(), error: null };
      this.state.pending = pending;
      this.chat.draw();
      this.chat.stick();
      if (!waits) this.deliver(pending);
    }

    // The answer that was being written when the connection was lost comes first.
    deliverWaiting() {
      const { pending, generation } = this.state;
      if (pending?.waits && !generation && P.socket.state.phase === "ready") this.deliver(pending);
    }

    // When another conversation is opened, what is not on its way goes back to its draft.
    leave() {
      const { pending } = this.state;
      if (pending?.waits || pending?.error) this.takeBack();
      this.state.pending = null;
    }

    // When the page goes, so does whatever the server has not told of yet.
    keep() {
      if (this.state.pending) this.takeBack();
    }

    async deliver(pending) {
      const { text, wish, parent_id, conversation_id } = pending;
      const frame = { type: "send", content: text };
      if (conversation_id) frame.conversation_id = conversation_id;
      else if (P.settings.systemPrompt()) frame.system_prompt = P.settings.systemPrompt();
      if (parent_id) frame.parent_id = parent_id;
      pending.waits = false;
      this.chat.draw();
      try {
        const started = await this.chat.begin(frame, wish);
        const opens = this.state.pending === pending && this.state.open === null;
        P.composer.forget(conversation_id, text, opens ? started.conversation_id : null);
        pending.conversation_id = started.conversation_id;
        if (!conversation_id) P.settings.keepNewChat(started.conversation_id);
        if (opens) this.chat.open(started);
        P.composer.refresh();
      } catch (error) {
        this.refuse(pending, error);
      }
    }

    // A refused message stays in sight with Retry and Edit; from another conversation it goes back to its draft.
    refuse(pending, error) {
      pending.error = error;
      if (this.state.pending === pending) this.chat.draw();
      else P.composer.giveBack(pending.text, pending.conversation_id);
    }

    takeBack() {
      const { text, conversation_id } = this.state.pending;
      this.state.pending = null;
      P.composer.giveBack(text, conversation_id);
    }

    edit() {
      this.takeBack();
      this.chat.draw();
      P.composer.focus();
    }

    retry() {
      const reason = this.chat.refusal();
      if (reason) P.sayObstacle(reason);
      else this.submit(this.state.pending.text, this.state.pending.wish);
    }

    // Whether the conversation's last message is the one on its way: then it has arrived.
    settle(last) {
      const { pending } = this.state;
      if (!pending || last?.content !== pending.text || last.id === pending.after) return;
      this.state.pending = null;
      P.composer.forget(this.state.open, pending.text);
    }
  };
})(window.Pageturn);
