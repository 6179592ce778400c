"""What people see and do in the admin, in a real browser: Debian's Chromium, driven by Playwright."""
