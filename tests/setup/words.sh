#!/bin/sh
# Lists words that VOICE.md replaces, with file and line, and counts them. Advice only: it never fails.
cd "$(dirname "$0")/../.." || exit
prose='(?<=[a-z,`.] )(nobody|somebody|beside|afresh|anew)\b(?= [a-z`]|[.,;:]( |$)|$)'
phrases='\b((?<!there )(?-i:is|are) (?-i:no|none)(?! longer)|nothing tells|one.s own|goes on|begin of|so (many|long)|told|heard of|spoke|the watch says|for ever)\b|[0-9}] %(?! [0-9({])( |[,;:)"]|$)'
git grep -nPi "$prose|$phrases" -- . ':!tests/setup/words.sh' ':!VOICE.md' ':!CHANGELOG.md' ':!LICENSE-*' ':!*.lock' ':!*.snap' \
    ':!tests/fuzz' ':!tests/data' ':!benches/notes' |
    cut -c1-160 | awk '{ print } END { printf "words: %d lines\n", NR }'
