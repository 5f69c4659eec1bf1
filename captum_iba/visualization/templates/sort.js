for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), row = head.parentElement, body = head.closest("table").tBodies[0];
    const other = head.dataset.first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === head.dataset.first ? other : head.dataset.first;
    for (const cell of row.cells) cell.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const value = line => line.cells[head.cellIndex].dataset.value;
    const text = [...body.rows].some(line => isNaN(value(line)));
    const compare = (a, b) => {
      if (!value(a) || !value(b)) return !value(a) - !value(b);
      const difference = text ? value(a).localeCompare(value(b)) : value(a) - value(b);
      return order === "ascending" ? difference : -difference;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
