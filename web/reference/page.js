// The reference in the colours that the reader's system asks for.

const reference = document.querySelector("rapi-doc");
const dark = matchMedia("(prefers-color-scheme: dark)");

function colours() {
  reference.setAttribute("theme", dark.matches ? "dark" : "light");
  reference.setAttribute("primary-color", dark.matches ? "#86acff" : "#2458c6");
}

dark.addEventListener("change", colours);
colours();
reference.addEventListener("spec-loaded", ({ detail }) => {
  document.title = detail?.info?.title ?? document.title;
});
