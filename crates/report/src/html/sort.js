document.querySelectorAll("table").forEach(function (table) {
  var body = table.tBodies[0];
  if (!body || body.rows.length < 2) return;
  table.querySelectorAll("th").forEach(function (th, column) {
    function sort() {
      var up = th.getAttribute("aria-sort") === "descending";
      table.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      th.setAttribute("aria-sort", up ? "ascending" : "descending");
      var numeric = th.classList.contains("n");
      function key(row) {
        var cell = row.cells[column];
        return numeric ? parseFloat(cell.dataset.v) : cell.textContent;
      }
      Array.from(body.rows).sort(function (a, b) {
        var x = key(a), y = key(b);
        if (numeric) {
          if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
          return up ? x - y : y - x;
        }
        return up ? y.localeCompare(x) : x.localeCompare(y);
      }).forEach(function (row) { body.appendChild(row); });
    }
    th.classList.add("sortable");
    th.tabIndex = 0;
    th.title = "Sort";
    th.addEventListener("click", sort);
    th.addEventListener("keydown", function (event) {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
});
