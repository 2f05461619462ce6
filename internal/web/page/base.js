"use strict";

// What all pages build their parts with. All texts go through textContent.
const page = (() => {
  // plain shows the characters of a text that would act on the page, or not be seen, by their numbers: names are chosen
  // by whoever connects.
  const plain = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cs}\u115f\u1160\u3164\uffa0]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

  // el makes an element. Attributes are set as they are, children are elements or texts.
  function el(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== false && value !== undefined) e.setAttribute(name, value);
    }
    e.append(...children.map((c) => c instanceof Node ? c : plain(c)));
    return e;
  }

  function svg(tag, attributes, text) {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
    if (text !== undefined) e.textContent = plain(text);
    return e;
  }

  return { el, plain, svg };
})();
