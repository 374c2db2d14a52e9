// SPDX-License-Identifier: Apache-2.0
// Runs the tests that an npm package holds: `node npm_suite.js PACKAGE [wait]`. With `wait` it waits for a line first.
'use strict';
const fs = require('fs');
const path = require('path');

require('tape');
const tests = path.join(process.env.NODE_PATH, process.argv[2], 'test');
const run = () => {
    for (const file of fs.readdirSync(tests).sort()) require(path.join(tests, file));
};

if (process.argv[3] === 'wait') {
    process.stdin.once('data', () => {
        process.stdin.destroy();                    // else the open pipe would keep node alive
        run();
    });
    console.log('ready');
} else {
    run();
}
