// Pointing at a target word colours the source words by its row of weights; pointing at a source word does the reverse.
for (const section of document.querySelectorAll("section:not(.summary)")) {
  const rows = [...section.querySelectorAll("tbody tr")];
  const src = { words: [...section.querySelectorAll(".src span")], heads: [...section.querySelectorAll("thead th")] };
  const tgt = { words: [...section.querySelectorAll(".tgt span")], heads: rows.map((row) => row.cells[0]) };
  const hint = section.querySelector(".hint");
  const idle = hint.textContent;
  const isolated = (word) => "\u2068" + word.textContent + "\u2069";  // so that Hebrew or Arabic stays in its place
  const cell = (t, s) => rows[t].cells[s + 1];
  const clear = () => {
    for (const element of section.querySelectorAll(".on, .lit")) {
      element.classList.remove("on", "lit");
      if (element.tagName !== "TD") { element.classList.remove("strong"); element.style.removeProperty("--w"); }
    }
    hint.textContent = idle;
  };
  const show = (here, index, there, cellAt) => {
    clear();
    const found = [];
    there.words.forEach((word, other) => {
      const td = cellAt(other);
      td.classList.add("on");
      const shade = td.style.getPropertyValue("--w") || "0";
      for (const element of [word, there.heads[other].firstElementChild]) {
        element.classList.add("lit");
        element.classList.toggle("strong", td.classList.contains("strong"));
        element.style.setProperty("--w", shade);
      }
      if (td.textContent) found.push([Number(td.textContent), isolated(word)]);
    });
    here.words[index].classList.add("on");
    (here === tgt ? rows[index] : here.heads[index]).classList.add("on");
    found.sort((a, b) => b[0] - a[0]);
    const list = found.slice(0, 4).map(([weight, word]) => word + " " + weight.toFixed(2)).join(" · ");
    hint.textContent = isolated(here.words[index]) + (here === tgt ? " ← " : " → ") + list;
  };
  const showTarget = (t) => show(tgt, t, src, (s) => cell(t, s));
  const showSource = (s) => show(src, s, tgt, (t) => cell(t, s));
  const listen = (element, action) => {
    element.addEventListener("mouseenter", action);
    element.addEventListener("focus", action);
    element.addEventListener("mouseleave", clear);
    element.addEventListener("blur", clear);
  };
  tgt.words.forEach((word, t) => listen(word, () => showTarget(t)));
  src.words.forEach((word, s) => listen(word, () => showSource(s)));
  rows.forEach((row, t) => listen(row, () => showTarget(t)));
  src.heads.forEach((head, s) => listen(head, () => showSource(s)));
}
