// The words of a text that another one does not have in the same order, for the differences between the answers of a group.

const MOST_WORDS = 1500;

const words = text => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

// Pairs [part, is common] of `text` beside `other`: by the longest common subsequence of words; of long texts only the common
// beginning and end.
export const differences = (text, other) => {
  const own = words(text), others = words(other);
  let start = 0, end = 0;
  while (start < own.length && start < others.length && own[start] === others[start]) start += 1;
  while (end < own.length - start && end < others.length - start && own.at(-1 - end) === others.at(-1 - end)) end += 1;
  const middle = own.slice(start, own.length - end), common = commonWords(middle, others.slice(start, others.length - end));
  const flags = [...new Array(start).fill(true), ...common, ...new Array(end).fill(true)], parts = [];
  own.forEach((word, index) => {
    const same = flags[index] || (/^\s+$/.test(word) && (flags[index - 1] ?? true) && (flags[index + 1] ?? true));
    if (parts.length && parts.at(-1)[1] === same) parts.at(-1)[0] += word; else parts.push([word, same]);
  });
  return parts;
};

const commonWords = (own, others) => {
  const common = new Array(own.length).fill(false);
  if (!own.length || !others.length || own.length > MOST_WORDS || others.length > MOST_WORDS) return common;
  const width = others.length + 1, lengths = new Uint16Array((own.length + 1) * width);
  for (let row = own.length - 1; row >= 0; row -= 1) for (let column = others.length - 1; column >= 0; column -= 1) {
    lengths[row * width + column] = own[row] === others[column] ? lengths[(row + 1) * width + column + 1] + 1 : Math.max(lengths[(row + 1) * width + column], lengths[row * width + column + 1]);
  }
  for (let row = 0, column = 0; row < own.length && column < others.length;) {
    if (own[row] === others[column]) { common[row] = true; row += 1; column += 1; }
    else if (lengths[(row + 1) * width + column] >= lengths[row * width + column + 1]) row += 1;
    else column += 1;
  }
  return common;
};
