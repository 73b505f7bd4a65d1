// Pointing at a word of the summary colours the article by the attention of this word. Pointing at a word of the article
// colours the summary by the attention that this word received. Otherwise, the article shows its final coverage.
for (const section of document.querySelectorAll("section.summary")) {
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const signs = section.dataset.weights;
  const top = Number(section.dataset.top);
  const target = { list: section.querySelector(".target") };
  const source = { list: section.querySelector(".source") };
  for (const side of [target, source]) side.words = [...side.list.children];
  const what = section.querySelector(".what");
  const hint = section.querySelector(".hint");
  const coverage = source.words.map((word) => Number(word.style.getPropertyValue("--w")));  // shares of the largest
  const mostCovered = Number(section.dataset.coverage);
  const idle = { what: what.textContent, hint: hint.textContent };

  const weight = (t, s) => {
    const at = 2 * (t * source.words.length + s);
    return (DIGITS.indexOf(signs[at]) * 64 + DIGITS.indexOf(signs[at + 1])) / 1000 * top;
  };
  const isolated = (word) => "\u2068" + word.textContent + "\u2069";  // so that Hebrew or Arabic stays in its place
  const shade = (words, shares) => words.forEach((word, index) => {
    word.style.setProperty("--w", shares[index].toFixed(3));
    const share = shares[index];
    word.classList.toggle("lit", share > section.dataset.lit && share <= section.dataset.strong);
    word.classList.toggle("strong", share > section.dataset.strong);
  });
  const best = (words, weights) => weights.map((value, index) => [value, index]).filter(([value]) => value >= 0.005)
    .sort((a, b) => b[0] - a[0]).slice(0, 5).map(([value, index]) => isolated(words[index]) + "\u00a0" + value.toFixed(2)).join(" · ");

  // The mouse takes precedence over the keyboard; when the pointer leaves, the focused word is shown again.
  let pointed = null, focused = null;
  const draw = () => {
    for (const word of section.querySelectorAll(".on")) word.classList.remove("on");
    const chosen = pointed || focused;
    if (!chosen) {
      shade(source.words, coverage);
      shade(target.words, target.words.map(() => 0));
      what.textContent = idle.what;
      hint.textContent = idle.hint;
      return;
    }
    const [here, index] = chosen;
    const there = here === target ? source : target;
    const word = here.words[index];
    const weights = there.words.map((_, other) => here === target ? weight(index, other) : weight(other, index));
    const most = Math.max(...weights);
    word.classList.add("on");
    shade(here.words, here === source ? coverage : here.words.map(() => 0));
    shade(there.words, weights.map((value) => value / (most || 1)));
    const facts = here === target
      ? [word.classList.contains("copied") && "copied",
         word.style.getPropertyValue("--p") && "p_gen " + Number(word.style.getPropertyValue("--p")).toFixed(2)]
      : ["coverage " + (coverage[index] * mostCovered).toFixed(2)];
    const known = facts.filter(Boolean).join(", ");
    what.textContent = (here === target ? "weights of " : "weights on ") + isolated(word) + ", 0 to " + most.toFixed(2);
    hint.textContent = isolated(word) + (known && " (" + known + ")") + (here === target ? " ← " : " → ") + best(there.words, weights);
  };

  for (const side of [target, source]) {
    const move = (index) => {
      for (const word of side.words) word.tabIndex = -1;
      side.words[index].tabIndex = 0;
      side.words[index].focus();
    };
    side.words[0].tabIndex = 0;
    side.words.forEach((word, index) => {
      word.addEventListener("mouseenter", () => { pointed = [side, index]; draw(); });
      word.addEventListener("mouseleave", () => { pointed = null; draw(); });
      word.addEventListener("focus", () => { focused = [side, index]; draw(); });
      word.addEventListener("blur", () => { focused = null; draw(); });
      word.addEventListener("mousedown", (event) => { event.preventDefault(); move(index); });
    });
    side.list.addEventListener("keydown", (event) => {
      const index = side.words.indexOf(document.activeElement);
      const forward = side.list.dir === "rtl" ? "ArrowLeft" : "ArrowRight";
      const back = side.list.dir === "rtl" ? "ArrowRight" : "ArrowLeft";
      const last = side.words.length - 1;
      const goal = { [forward]: index + 1, [back]: index - 1, ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: last }[event.key];
      if (event.key === "Escape") document.activeElement.blur();
      if (goal === undefined || index < 0) return;
      event.preventDefault();
      move(Math.min(Math.max(goal, 0), last));
    });
  }
}
