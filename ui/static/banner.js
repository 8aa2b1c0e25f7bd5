// The line above the transcript: why the page is not ready, and how far the loading has come.
"use strict";

(function (P) {
  let banner, words, elapsed, bar;
  let stage = null;
  let since = 0;
  let timer = 0;

  function showElapsed() {
    P.setText(elapsed, `${Math.floor((performance.now() - since) / 1000)} s`);
  }

  // A stage that cannot tell how far it is says how long it has lasted.
  function drawProgress(fraction) {
    bar.hidden = fraction === undefined;
    elapsed.hidden = fraction !== null;
    if (Number.isFinite(fraction)) bar.value = fraction;
    else bar.removeAttribute("value");
    clearInterval(timer);
    if (elapsed.hidden) return;
    showElapsed();
    timer = setInterval(showElapsed, 1000);
  }

  function show(text, fraction) {
    if (!banner) return;
    banner.hidden = !text;
    P.setText(words, text);
    drawProgress(fraction);
  }

  // Why the page is not ready, or "".
  function wordsFor(state) {
    if (state.phase === "lost") return "The connection to the server was lost. Reconnecting…";
    return state.phase === "loading" ? `The model is loading${state.stage ? `: ${state.stage}` : ""}.` : "";
  }

  function showState(state) {
    const isLoading = state.phase === "loading";
    if (!isLoading) stage = null;
    else if (state.stage !== stage) [stage, since] = [state.stage, performance.now()];
    if (isLoading) show(`${wordsFor(state)} You can read your conversations meanwhile.`, state.fraction);
    else show(wordsFor(state));
  }

  function mount(element) {
    banner = element;
    [words, elapsed, bar] = ["[role=status]", ".pt-elapsed", "progress"].map((name) => banner.querySelector(name));
  }

  P.banner = { mount, show, showState, wordsFor };
})(window.Pageturn);
