module github.com/kgen-project/kgen

go 1.26
