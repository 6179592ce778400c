"""What is wrong with how a page is laid out, on whatever screen: said in words."""

from playwright.sync_api import Page

WIDTHS = (1280, 390)
LONGEST_WORD = 20  # letters and digits that stand together; what is longer, such as a key, may have to be broken
SIDEWAYS = """() => {
    const found = []
    const page = document.documentElement
    if (page.scrollWidth > page.clientWidth) found.push(`the page is ${page.scrollWidth} of ${page.clientWidth} wide`)
    for (const one of document.querySelectorAll('#content, #content *')) {
        if (!one.checkVisibility() || one.closest('svg, .visually-hidden')) continue
        if (one.closest('thead') && getComputedStyle(one.closest('thead')).clipPath !== 'none') continue
        const {right, width} = one.getBoundingClientRect()
        if (width && right > page.clientWidth + 1)
            found.push(`ends at ${Math.round(right)}: ${one.outerHTML.slice(0, 150)}`)
        const how = getComputedStyle(one).overflowX
        if (['auto', 'scroll', 'hidden'].includes(how) && one.scrollWidth > one.clientWidth + 1)
            found.push(`${one.scrollWidth} in ${one.clientWidth}: ${one.outerHTML.slice(0, 150)}`)
    }
    return found
}"""
BROKEN = """(longest) => {
    const found = []
    const texts = document.createTreeWalker(document.querySelector('#content'), NodeFilter.SHOW_TEXT)
    while (texts.nextNode()) {
        const node = texts.currentNode
        if (!node.parentElement.checkVisibility() || node.parentElement.closest('svg, script, style, select')) continue
        if (node.parentElement.closest('pre, code')) continue  // data, which has no words
        const head = node.parentElement.closest('thead')
        if (head && getComputedStyle(head).clipPath !== 'none') continue  // read out, and not seen
        for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
            if (word[0].length > longest) continue
            const range = document.createRange()
            range.setStart(node, word.index)
            range.setEnd(node, word.index + word[0].length)
            const lines = new Set([...range.getClientRects()].map((one) => Math.round(one.top)))
            if (lines.size > 1) found.push(`${word[0]} in ${node.parentElement.outerHTML.slice(0, 150)}`)
        }
    }
    return found
}"""


def sideways(page: Page) -> list[str]:
    """Return what is wider than the screen, or than what it stands in."""
    return list(page.evaluate(SIDEWAYS))


def broken_words(page: Page) -> list[str]:
    """Return the words that are continued on another line."""
    return list(page.evaluate(BROKEN, LONGEST_WORD))
