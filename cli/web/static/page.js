"use strict";
// Updates the page. The server renders everything: responses are HTML, which replaces the old content.
(() => {
  const EVERY = 2000;
  const DEBOUNCE = 120;
  const LATE = 4000;
  const live = document.getElementById("live");
  const notice = document.getElementById("notice");
  const control = document.querySelector(".live-control");
  const state = document.getElementById("live-state");
  const toggle = document.getElementById("live-toggle");
  let paused = false;
  let timer = 0;

  function say(sentence) {
    if (notice.textContent !== sentence) notice.textContent = sentence;
    notice.hidden = !sentence;
  }

  // ------------------------------------------------------------------ fragments

  // The focused element, to restore the focus after a replacement.
  function focused(element) {
    const active = document.activeElement;
    if (!active || !element.contains(active)) return null;
    for (const name of ["id", "href", "aria-label"]) {
      const value = active.getAttribute(name);
      if (value) return [active.localName, name, value, active.rel];
    }
    return null;
  }

  function giveBack(element, before) {
    if (!before) return;
    const [tag, name, value, rel] = before;
    const all = [...element.querySelectorAll(tag)];
    const same = all.find((one) => one.getAttribute(name) === value);
    const alike = rel ? all.find((one) => one.rel === rel) : null;
    const found = same || alike;
    if (found) found.focus({ preventScroll: true });
  }

  function swap(element, html) {
    const before = focused(element);
    const scrolled = new Map();
    for (const one of element.querySelectorAll(".scroll")) {
      if (one.scrollLeft) scrolled.set(one.getAttribute("aria-label"), one.scrollLeft);
    }
    const made = new DOMParser().parseFromString(html, "text/html");
    element.replaceChildren(...made.body.childNodes);
    for (const one of element.querySelectorAll(".scroll")) {
      one.scrollLeft = scrolled.get(one.getAttribute("aria-label")) || 0;
    }
    giveBack(element, before);
  }

  function sentence(html) {
    const made = new DOMParser().parseFromString(html, "text/html");
    return made.body.textContent.trim();
  }

  // Returns the HTML, or null after showing the error.
  async function get(address, signal) {
    let answer, text;
    try {
      answer = await fetch(address, { signal, cache: "no-store", redirect: "error" });
      text = await answer.text();
    } catch (error) {
      if (error.name === "AbortError") return null;
      say("No answer from the server of this page: the broker may have stopped. The page retries by itself.");
      return null;
    }
    if (answer.ok) {
      say("");
      return text;
    }
    if (answer.status === 401) say("Your login has ended: reload the page.");
    else say(sentence(text));
    return null;
  }

  // ------------------------------------------------------------------ live

  function selecting() {
    const chosen = document.getSelection();
    return chosen && !chosen.isCollapsed && live.contains(chosen.anchorNode);
  }

  // The content may be out of date.
  function markStale(stale) {
    live.classList.toggle("stale", stale);
    state.classList.toggle("away", stale);
    state.textContent = stale ? "away" : "live";
  }

  async function refresh() {
    const address = live.dataset.live;
    if (!address) return;
    let pause = EVERY;
    if (!document.hidden && !paused && !selecting()) {
      const begun = performance.now();
      const late = setTimeout(() => {
        if (live.dataset.live === address && !paused) markStale(true);
      }, LATE);
      const html = await get(address, AbortSignal.timeout(15000));
      clearTimeout(late);
      if (live.dataset.live !== address) return;
      if (html !== null && live.dataset.away) {
        location.replace(live.dataset.away);
        return;
      }
      markStale(html === null);
      if (html !== null) swap(live, html);
      // Slow requests are made less often, to spare the broker.
      pause = Math.max(pause, 10 * (performance.now() - begun));
    }
    again(pause);
  }

  function again(pause) {
    clearTimeout(timer);
    if (live.dataset.live) timer = setTimeout(refresh, pause);
  }

  function showControl() {
    if (control) control.hidden = !live.dataset.live;
  }

  if (live) {
    showControl();
    again(EVERY);
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && live.dataset.live && !paused) {
        clearTimeout(timer);
        refresh();
      }
    });
  }
  if (toggle) {
    toggle.addEventListener("click", () => {
      paused = !paused;
      toggle.setAttribute("aria-pressed", String(paused));
      toggle.textContent = paused ? "Resume" : "Pause";
      state.classList.toggle("paused", paused);
      state.textContent = paused ? "paused" : "live";
    });
  }

  // ------------------------------------------------------------------ for time.js

  // Stops the updates: a moment of the past is shown.
  function hold() {
    delete live.dataset.live;
    clearTimeout(timer);
    live.classList.remove("stale");
    showControl();
  }

  function resume(address) {
    live.dataset.live = address;
    showControl();
    refresh();
  }

  window.foldmq = { live, get, swap, hold, resume, following: () => !document.hidden && !paused };
})();
