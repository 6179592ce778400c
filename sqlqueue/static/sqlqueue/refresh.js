/* Reads a page with live figures again every few seconds, while its switch is on and the reader is not in the midst of
 * something: another tab is in front, a control of the page has the focus, text is selected, or a detail is open. */
'use strict';
{
    const KEY = 'sqlqueue.refresh';
    const SECONDS = 10;
    const busy = () => {
        const content = document.getElementById('content');
        const focus = document.activeElement;
        return document.hidden || !getSelection().isCollapsed || content.querySelector('details[open]') !== null ||
            (content.contains(focus) && focus.id !== 'sqlqueue-refresh' && focus !== content);
    };
    const on = () => localStorage.getItem(KEY) !== 'off';
    const refresh = async () => {
        const answer = await fetch(location.href, {headers: {'X-Requested-With': 'XMLHttpRequest'}});
        if (!answer.ok || answer.redirected || busy() || !on()) {
            return;
        }
        const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
        const fresh = page.getElementById('content-main');
        if (fresh !== null) {
            document.getElementById('content-main').replaceWith(fresh);
        }
    };
    document.addEventListener('DOMContentLoaded', () => {
        const control = document.getElementById('sqlqueue-refresh');
        if (control === null) {
            return;
        }
        control.checked = on();
        control.closest('p').hidden = false;
        control.addEventListener('change', () => localStorage.setItem(KEY, control.checked ? 'on' : 'off'));
        const seconds = Number(control.dataset.seconds) || SECONDS;
        setInterval(() => {
            if (on() && !busy()) {
                refresh().catch(() => {}); // the site is away for a moment: the next turn asks again
            }
        }, seconds * 1000);
    });
}
