// Runs before textual.js opens the terminal, which it does when the page has loaded.
"use strict";

const CELL_SHARE = 0.6; // width of a monospace character, of the font size
const SMALLEST_PX = 9;

const terminal = document.getElementById("terminal");

// A narrow window gets smaller letters, so that the screen keeps its columns; ?fontsize=N is kept as it is.
if (!new URLSearchParams(window.location.search).has("fontsize")) {
  const fitting = Math.floor(terminal.clientWidth / Number(terminal.dataset.minColumns) / CELL_SHARE);
  terminal.dataset.fontSize = String(Math.max(SMALLEST_PX, Math.min(Number(terminal.dataset.fontSize), fitting)));
}

// Keys work without a click, as soon as the screen is there: a focus before that would be sent into a closed socket.
new MutationObserver((changes, observer) => {
  if (document.body.classList.contains("-first-byte")) {
    observer.disconnect();
    document.querySelector(".xterm-helper-textarea")?.focus();
  }
}).observe(document.body, { attributes: true });
