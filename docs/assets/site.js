// The theme's search box is a dialog without a name; wide tables and blocks scroll without a focus.
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
  for (const one of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0
  }
})
